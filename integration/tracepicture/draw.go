package main

import (
	"bytes"
	_ "embed"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"
	"text/template"
	"time"
)

//go:embed picture.svg.tmpl
var source string

var picture = template.Must(template.New("picture").Funcs(template.FuncMap{
	"n":    func(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) },
	"add":  func(a, b float64) float64 { return a + b },
	"text": escaped,
	"ms":   milliseconds,
	"tick": func(d time.Duration) string { return strings.Replace(milliseconds(d), ".0 ", " ", 1) },
	"kind": kindOf,
	"size": func() map[string]float64 {
		return map[string]float64{"width": width, "top": top, "durations": durationsX, "notes": notesX}
	},
}).Parse(source))

// draw returns the picture as SVG.
func draw(l layout) ([]byte, error) {
	var b bytes.Buffer
	err := picture.Execute(&b, l)
	return b.Bytes(), err
}

func escaped(s string) (string, error) {
	var b strings.Builder
	err := xml.EscapeText(&b, []byte(s))
	return b.String(), err
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// Legend is the legend, a class of bars for each kind of spans.
func (layout) Legend() []legend {
	return []legend{{"imagepin", "imagepin", margin}, {"containerd", "containerd", margin + 85}, {"http", "request to the registry (containerd)", margin + 180}}
}

type legend struct {
	Class, Text string
	X           float64
}

// kindOf returns whose span it is, as the class of its bar.
func kindOf(name string) string {
	switch {
	case strings.HasPrefix(name, "imagepin."):
		return "imagepin"
	case strings.HasSuffix(name, ".HTTPRequest"):
		return "http"
	}
	return "containerd"
}
