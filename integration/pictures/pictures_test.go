package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/svg"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

const directory = "../../docs/pictures"

// layouts returns the pictures before they are files.
func layouts(t *testing.T) map[string]*svg.Picture {
	t.Helper()
	all := map[string]*svg.Picture{"digest-policy.svg": layFlow(digestPolicy), "what-decides.svg": layFlow(whatDecides)}
	var runs []*run
	for _, r := range recordings {
		c := recording(t, r.name)
		all[r.name+".svg"] = layTerminal(c)
		parsed, err := parseRun(c.text())
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, parsed)
	}
	oneTag, err := layOneTag(runs[1], runs[0])
	if err != nil {
		t.Fatal(err)
	}
	all["one-tag.svg"] = oneTag
	return all
}

func recording(t *testing.T, name string) *cast {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(directory, name+".cast"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := readCast(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(c.bytes(), b) {
		t.Errorf("%s.cast changes if it is read and written", name)
	}
	return c
}

// TestPicturesAreOfTheRecordings checks that the pictures in the repository are what the program draws.
func TestPicturesAreOfTheRecordings(t *testing.T) {
	pictures, err := drawAll(directory)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range pictures {
		got, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("docs/pictures/%s is not up to date: run `go run ./pictures -draw` in integration", name)
		}
	}
}

var private = regexp.MustCompile(`127\.0\.0\.1|localhost|/root/|/home/|/tmp/imagepin-|<script|@import|@font-face|<image|href=`)

// ofOthers are the pictures that integration/tracepicture draws.
var ofOthers = []string{"trace-cold-pull.svg"}

// TestFiles checks size, form and content of each file.
func TestFiles(t *testing.T) {
	files, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	pictures, err := drawAll(directory)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(pictures) + len(recordings) + len(ofOthers); len(files) != want {
		t.Errorf("docs/pictures has %d files, want %d", len(files), want)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(directory, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		limit := 200 << 10
		if filepath.Ext(f.Name()) == ".cast" {
			limit = 300 << 10
		} else if err := wellFormed(b); err != nil {
			t.Errorf("%s: %v", f.Name(), err)
		}
		if len(b) > limit {
			t.Errorf("%s has %d bytes, at most %d are allowed", f.Name(), len(b), limit)
		}
		if found := private.Find(b); found != nil {
			t.Errorf("%s contains %q", f.Name(), found)
		}
	}
}

func wellFormed(b []byte) error {
	d := xml.NewDecoder(bytes.NewReader(b))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestTextFits(t *testing.T) {
	for name, s := range layouts(t) {
		if len(s.Texts) == 0 {
			t.Errorf("%s has no text", name)
		}
		if filepath.Base(name) == "demo.svg" || filepath.Base(name) == "demo-stock.svg" {
			s.Texts = s.Texts[1:] // the title is in the bar, the lines scroll below it
		}
		for _, m := range s.Misplaced() {
			t.Errorf("%s: %s", name, m)
		}
	}
	bad := &svg.Picture{Width: 100}
	bad.Text(0, 10, 10, 50, "text", "much too long")
	bad.Text(20, 14, 10, 100, "text", "over")
	if got := bad.Misplaced(); len(got) != 2 {
		t.Errorf("the check found %q", got)
	}
}

// TestFlowchartLines checks that no line passes through a box, and no two boxes have the same place.
func TestFlowchartLines(t *testing.T) {
	checkLines(t, digestPolicy)
	checkLines(t, whatDecides)
}

func checkLines[S any](t *testing.T, chart []step[S]) {
	t.Helper()
	s, all := layFlow(chart), place(chart)
	for i, box := range all {
		for _, l := range s.Lines {
			left, right := min(l[0].X, l[1].X), max(l[0].X, l[1].X)
			top, bottom := min(l[0].Y, l[1].Y), max(l[0].Y, l[1].Y)
			if left < box.x+box.w-1 && right > box.x+1 && top < box.y+box.h-1 && bottom > box.y+1 {
				t.Errorf("the line %v passes through %q", l, box.name)
			}
		}
		for _, o := range all[i+1:] {
			if box.x < o.x+o.w && o.x < box.x+box.w && box.y < o.y+o.h && o.y < box.y+box.h {
				t.Errorf("%q is on %q", box.name, o.name)
			}
		}
	}
	if len(s.Lines) < len(chart)-2 {
		t.Errorf("the flowchart has only %d lines", len(s.Lines))
	}
}

// matrixRow is a row of the matrix that pkg/imagepin/decide tests.
type matrixRow struct {
	PullPolicy, Behavior string
	Off, Pinned          struct {
		Outcomes map[string]map[string]string // by pinned version and state of the node
	}
}

// TestFlowchartIsTheMatrix goes through the flowchart with every situation of the tested matrix.
func TestFlowchartIsTheMatrix(t *testing.T) {
	b, err := os.ReadFile("../../pkg/imagepin/decide/testdata/matrix.json")
	if err != nil {
		t.Fatal(err)
	}
	var matrix []matrixRow
	if err := json.Unmarshal(b, &matrix); err != nil {
		t.Fatal(err)
	}
	behaviors := []policy.Behavior{policy.Default, policy.Always, policy.Once, policy.PreferCached}
	visited := map[string]bool{}
	tested := 0
	for _, r := range matrix {
		of := behaviors
		if r.Behavior != "" {
			of = []policy.Behavior{policy.Behavior(r.Behavior)}
		}
		for _, behavior := range of {
			for _, byPin := range []map[string]map[string]string{r.Off.Outcomes, r.Pinned.Outcomes} {
				for pinned, states := range byPin {
					for state, results := range states {
						if _, ok := images[state]; !ok {
							t.Fatalf("the flowchart does not know the state %q", state)
						}
						for i, want := range strings.Fields(results) {
							s := situation{
								pulls: strings.Contains(r.PullPolicy, "Always"), behavior: string(behavior), pinned: pinned, node: state,
								answer: []string{"old", "new", "404", "401", "503", "gone"}[i],
							}
							got, way, err := follow(digestPolicy, s)
							if err != nil || got != want {
								t.Errorf("%+v: got %s, want %s, by %v: %v", s, got, want, way, err)
							}
							for _, step := range way {
								visited[step] = true
							}
							tested++
						}
					}
				}
			}
		}
	}
	if tested < 500 {
		t.Errorf("the matrix has only %d situations", tested)
	}
	for _, n := range digestPolicy {
		if n.kind != note && !visited[n.name] {
			t.Errorf("no situation of the matrix leads to %q", n.name)
		}
	}
}

// TestChartIsTheOrder goes through the chart of the order with every combination of pins.
func TestChartIsTheOrder(t *testing.T) {
	b, err := os.ReadFile("../../pkg/imagepin/decide/testdata/order.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []combination
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	visited := map[string]bool{}
	for _, c := range all {
		got, way, err := follow(whatDecides, c)
		if err != nil || got != c.Decides {
			t.Errorf("%+v: got %s, by %v: %v", c, got, way, err)
		}
		for _, step := range way {
			visited[step] = true
		}
	}
	if len(all) < 300 {
		t.Errorf("the file has only %d combinations", len(all))
	}
	for _, n := range whatDecides {
		if !visited[n.name] {
			t.Errorf("no combination leads to %q", n.name)
		}
	}
}

// TestFlowchartHasTheValues checks that the flowchart names the values that the policy has, and no others.
func TestFlowchartHasTheValues(t *testing.T) {
	text := flowText(digestPolicy)
	for _, value := range []string{
		string(policy.Default), string(policy.Always), string(policy.Once), string(policy.PreferCached), string(policy.Node), string(policy.Workload),
		"IfNotPresent", "Never", "pull_behavior", "version_consistency",
	} {
		if !regexp.MustCompile(`\b` + value + `\b`).MatchString(text) {
			t.Errorf("the flowchart does not have %q", value)
		}
	}
	for _, n := range digestPolicy {
		if (n.ask != nil) != (n.kind == question) || (n.result != nil) != (n.kind == runs || n.kind == fails) {
			t.Errorf("%q has the wrong shape", n.name)
		}
	}
}

// TestRuns checks that the recordings show what the pictures claim.
func TestRuns(t *testing.T) {
	ours, err := parseRun(recording(t, "demo").text())
	if err != nil {
		t.Fatal(err)
	}
	stock, err := parseRun(recording(t, "demo-stock").text())
	if err != nil {
		t.Fatal(err)
	}
	for _, tbl := range ours.tables {
		for i, r := range tbl.rows {
			if r.platform != ours.handlers[i].platform || r.snapshotter != ours.handlers[i].snapshotter {
				t.Errorf("imagepin, step %d: %+v, want %+v", tbl.step, r, ours.handlers[i])
			}
		}
	}
	// A pod of each revision, then one more after the crash.
	for step, want := range map[int][]string{5: {"1.1 v1", "1.2 v1", "2.1 v2"}, 6: {"1.1 v1", "1.2 v1", "1.3 v1", "2.1 v2", "2.2 v2"}} {
		var got, wrong []string
		for _, p := range ours.replicas[step] {
			got = append(got, p.revision+"."+p.pod+" "+p.output[strings.LastIndex(p.output, "=")+1:])
			if !strings.HasSuffix(p.pin, "("+got[len(got)-1][4:]+")") {
				t.Errorf("imagepin, step %d: %+v is not pinned to what it runs", step, p)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("imagepin, step %d: pods %q, want %q", step, got, want)
		}
		for _, p := range stock.replicas[step] {
			if p.wrong {
				wrong = append(wrong, p.revision+"."+p.pod)
			}
		}
		if want := []string{"1.2", "1.3"}[:step-4]; !slices.Equal(wrong, want) {
			t.Errorf("stock, step %d: wrong pods %q, want %q", step, wrong, want)
		}
	}
	if ours.why == "" || stock.why != "" {
		t.Errorf("why two builds are right: imagepin %q, stock %q", ours.why, stock.why)
	}
	pods, err := stock.table(3, "")
	if err != nil {
		t.Fatal(err)
	}
	if r := pods.rows[1]; !r.wrong["snapshotter"] || !strings.HasPrefix(r.output, "no pod") {
		t.Errorf("stock, handler second: %+v", r)
	}
	if r := pods.rows[2]; !r.wrong["platform"] || !r.wrong["output"] || r.output != "platform=linux/amd64 version=v1" {
		t.Errorf("stock, handler arm: %+v", r)
	}
	if len(stock.notes) == 0 || !strings.Contains(stock.notes[0], "not found") {
		t.Errorf("stock has the errors %q", stock.notes)
	}
	if _, err := parseRun("1. Start\n"); err == nil {
		t.Error("a run that ends early is no error")
	}
}

func TestNeutral(t *testing.T) {
	got := neutral(`registry 127.0.0.1:41263 below /tmp/imagepin-12-34, sandbox "3d14998e8d0c...", as "extract-26099385-bqIQ sha256:1a5e`)
	want := `registry registry.example.com below /tmp/imagepin, sandbox "0a1b2c3d4e5f...", as "extract-100000000-abcd sha256:1a5e`
	if got != want {
		t.Errorf("got %s", got)
	}
}

func TestReadCastRejects(t *testing.T) {
	for _, text := range []string{"", `{"version":1}` + "\n", `{"version":2}` + "\n" + `[0,"i","x"]` + "\n", "{"} {
		if _, err := readCast([]byte(text)); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}

func TestWrap(t *testing.T) {
	if got := svg.Wrap("one two threefour five", 7); !slices.Equal(got, []string{"one two", "threefo", "ur five"}) {
		t.Errorf("got %q", got)
	}
}

// TestDemoPage checks that docs/demo.md shows the recordings: each block has lines of one of them, in order.
func TestDemoPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/demo.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```text\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != len(recordings) {
		t.Fatalf("docs/demo.md has %d blocks, want %d", len(blocks), len(recordings))
	}
	took := regexp.MustCompile(`Result after \S+:`) // differs in each run
	for i, r := range recordings {
		rest := strings.Split(took.ReplaceAllString(recording(t, r.name).text(), "Result:"), "\n")
		for line := range strings.Lines(took.ReplaceAllString(blocks[i][1], "Result:")) {
			line = strings.TrimRight(line, "\n")
			if line == "" || strings.TrimSpace(line) == "[...]" {
				continue
			}
			at := slices.Index(rest, line)
			if at < 0 {
				t.Errorf("docs/demo.md: %s.cast does not have this line, or has it earlier: %s", r.name, line)
				continue
			}
			rest = rest[at+1:]
		}
	}
}
