package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// cast is a recording in the format asciicast v2.
type cast struct {
	header header
	events []event
}

type header struct {
	Version int    `json:"version"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	Title   string `json:"title"`
}

// event is one line of output, without its end.
type event struct {
	at   float64 // seconds
	line string
}

// The size of the terminal. The demo prints lines of at most 110 characters.
const (
	columns = 112
	rows    = 32
)

// record runs a program and records its output, line by line.
func record(ctx context.Context, title, program string, args ...string) (*cast, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &cast{header: header{Version: 2, Width: columns, Height: rows, Title: title}}
	c.events = append(c.events, event{0, "$ " + title})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		at := math.Round(time.Since(began).Seconds()*100) / 100
		c.events = append(c.events, event{at, neutral(lines.Text())})
	}
	if err := cmd.Wait(); err != nil {
		return nil, errors.Join(err, errors.New(failed.String()))
	}
	return c, nil
}

// ofThisRun are the parts of the output that belong to the machine or to this run, and what a recording has instead.
var ofThisRun = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "registry.example.com"},
	{regexp.MustCompile(`/tmp/imagepin-\d+-\d+`), "/tmp/imagepin"},
	{regexp.MustCompile(`"[0-9a-f]{12}\.\.\."`), `"0a1b2c3d4e5f..."`}, // the ID of a sandbox
	{regexp.MustCompile(`"extract-\d+-\S+ `), `"extract-100000000-abcd `},
}

// neutral returns a line without what names the machine: the address of the registry, the temporary root and numbers
// that containerd draws.
func neutral(line string) string {
	for _, r := range ofThisRun {
		line = r.pattern.ReplaceAllString(line, r.with)
	}
	return line
}

// bytes returns the recording as a file.
func (c *cast) bytes() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(c.header) // a buffer does not fail
	for _, v := range c.events {
		_ = e.Encode([]any{v.at, "o", v.line + "\r\n"})
	}
	return b.Bytes()
}

func readCast(b []byte) (*cast, error) {
	var c cast
	first := true
	for line := range bytes.Lines(b) {
		if first {
			if err := json.Unmarshal(line, &c.header); err != nil {
				return nil, err
			}
			if c.header.Version != 2 {
				return nil, fmt.Errorf("version %d of asciicast", c.header.Version)
			}
			first = false
			continue
		}
		var v [3]any
		if err := json.Unmarshal(line, &v); err != nil {
			return nil, err
		}
		at, isTime := v[0].(float64)
		kind, _ := v[1].(string)
		text, isText := v[2].(string)
		if !isTime || !isText || kind != "o" {
			return nil, fmt.Errorf("unexpected event %s", line)
		}
		c.events = append(c.events, event{at, strings.TrimSuffix(text, "\r\n")})
	}
	if len(c.events) == 0 {
		return nil, errors.New("the recording is empty")
	}
	return &c, nil
}

// text returns what the terminal shows in the end.
func (c *cast) text() string {
	var b strings.Builder
	for _, v := range c.events {
		b.WriteString(v.line + "\n")
	}
	return b.String()
}

// widest returns the number of characters of the longest line.
func (c *cast) widest() int {
	n := 0
	for _, v := range c.events {
		n = max(n, utf8.RuneCountInString(v.line))
	}
	return n
}
