package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// published is the picture in the documents.
const published = "../../docs/pictures/trace-cold-pull.svg"

// drawn is a span in a picture.
type drawn struct {
	Class string `xml:"class,attr"`
	Title string `xml:"title"`
	Bar   struct {
		X     float64 `xml:"x,attr"`
		Width float64 `xml:"width,attr"`
	} `xml:"rect"`
	Texts []struct {
		Class string `xml:"class,attr"`
		Text  string `xml:",chardata"`
	} `xml:"text"`
	Below []*drawn `xml:"g"`
}

// text returns the text with a class.
func (d *drawn) text(class string) string {
	for _, t := range d.Texts {
		if slices.Contains(strings.Fields(t.Class), class) {
			return t.Text
		}
	}
	return ""
}

// tree returns the spans as [treeOf] returns them, with their names only.
func (d *drawn) tree() *span {
	s := &span{Name: d.text("name")}
	for _, b := range d.Below {
		s.Children = append(s.Children, b.tree())
	}
	return s
}

func read(t *testing.T, picture []byte) *drawn {
	t.Helper()
	var svg struct {
		Spans []*drawn `xml:"g"`
	}
	if err := xml.Unmarshal(picture, &svg); err != nil || len(svg.Spans) != 1 {
		t.Fatalf("reading the picture: %v, got %d roots, want 1", err, len(svg.Spans))
	}
	return svg.Spans[0]
}

func readPublished(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(published)
	if err != nil {
		t.Fatalf("%v; run make picture-trace", err)
	}
	return b
}

// TestSpansAreThoseOfARun checks that the published picture has the spans of a real pull, each below the same ones.
func TestSpansAreThoseOfARun(t *testing.T) {
	spans, err := coldPull(testkit.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	root, err := treeOf(spans)
	if err != nil {
		t.Fatal(err)
	}
	shown, ran := read(t, readPublished(t)).tree().paths(), root.paths()
	if !slices.Equal(shown, ran) {
		t.Errorf("got the spans\n%s\nwant those of the picture\n%s\nAfter a change of the spans, run make picture-trace.",
			strings.Join(ran, "\n"), strings.Join(shown, "\n"))
	}
	picture, err := draw(layOut(root))
	if err != nil {
		t.Fatal(err)
	}
	if again := read(t, picture).tree().paths(); !slices.Equal(again, ran) {
		t.Errorf("a new picture has the spans\n%s\nwant\n%s", strings.Join(again, "\n"), strings.Join(ran, "\n"))
	}
}

// TestPublishedBarsAreToScale checks that each bar of the published picture is as long as its duration says.
func TestPublishedBarsAreToScale(t *testing.T) {
	root := read(t, readPublished(t))
	duration := func(d *drawn) (ms float64) {
		if _, err := fmt.Sscanf(d.text("duration"), "%f ms", &ms); err != nil {
			t.Errorf("span %s has duration %q: %v", d.Title, d.text("duration"), err)
		}
		return ms
	}
	unit := root.Bar.Width / duration(root) // pixels in a millisecond
	var check func(*drawn)
	check = func(d *drawn) {
		want := max(minBar, duration(d)*unit)
		if diff := d.Bar.Width - want; diff > 0.2 || diff < -0.2 { // durations are rounded
			t.Errorf("span %s of %s has a bar of %.2f, want %.2f", d.Title, d.text("duration"), d.Bar.Width, want)
		}
		if d.Title != d.text("name") {
			t.Errorf("span %s has title %s", d.text("name"), d.Title)
		}
		for _, b := range d.Below {
			if b.Bar.X < d.Bar.X-0.01 {
				t.Errorf("span %s starts before %s, which is above it", b.Title, d.Title)
			}
			check(b)
		}
	}
	check(root)
}

// TestPublishedPictureIsStatic checks that the published picture is small, and runs and loads nothing.
func TestPublishedPictureIsStatic(t *testing.T) {
	b := readPublished(t)
	if len(b) >= 100_000 {
		t.Errorf("the picture has %d bytes", len(b))
	}
	for _, no := range []string{"<script", "href", "url(", "@import", "<foreignObject"} {
		if bytes.Contains(b, []byte(no)) {
			t.Errorf("the picture contains %s", no)
		}
	}
	if !bytes.Contains(b, []byte("prefers-color-scheme: dark")) {
		t.Error("the picture has no dark mode")
	}
}
