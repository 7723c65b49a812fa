package main

import (
	"fmt"
	"strings"
)

// moment is a part of the picture: what both sides have after a step.
type moment struct {
	title string
	step  int
	// heading begins the paragraph above the table of the step.
	heading string
	// pods is true if the picture shows what ran, otherwise the digest.
	pods bool
}

var moments = []moment{
	{"1. Pull the tag for each handler, and run a pod for each", 3, "Run a pod", true},
	{"2. The tag moves to %[2]s. Pull it for runc only: which digest has each handler?", 4, "The node after a pull", false},
	{"3. Kill containerd, stop the registry, start containerd: a new pod for each handler", 5, "The node after a new pod", true},
}

const (
	pageWidth = 960.0
	margin    = 20.0
	nameWidth = 190.0
	sideWidth = (pageWidth - 2*margin - nameWidth - 20) / 2
	small     = 12.0
	cellLine  = 17.0
)

// drawOneTag draws what one tag is on a node, with stock containerd and with imagepin.
func drawOneTag(stock, ours *run) ([]byte, error) {
	s, err := layOneTag(stock, ours)
	if err != nil {
		return nil, err
	}
	return s.finish("One tag on one node, with stock containerd and with imagepin",
		"For each of three runtime handlers: what the node has for the tag, and what ran. "+describe(stock)+" "+describe(ours), colors), nil
}

func layOneTag(stock, ours *run) (*svg, error) {
	s := &svg{width: pageWidth, page: true}
	y := 30.0
	sides := []struct {
		x float64
		*run
	}{{margin + nameWidth, stock}, {margin + nameWidth + 20 + sideWidth, ours}}
	s.text(margin, y, 13, pageWidth-margin, "text",
		fmt.Sprintf("One tag, app:stable, for three runtime handlers of one node: %s and %s", ours.handlers[0].platform, ours.handlers[2].platform))
	y += 19
	s.text(margin, y, small, pageWidth-margin, "dim", "containerd discards layers after it has unpacked them (discard_unpacked_layers = true)")
	y += 31
	for _, side := range sides {
		s.text(side.x, y, 13, side.x+sideWidth, "text", side.containerd)
	}
	s.text(margin, y, small, margin+nameWidth, "dim", "handler wants")
	y += 12
	for _, m := range moments {
		title := m.title
		if strings.Contains(title, "%") {
			title = fmt.Sprintf(title, ours.moved[0], ours.moved[1])
		}
		y += 20
		s.text(margin, y, small, pageWidth-margin, "text", title)
		y += 9
		for i, h := range ours.handlers {
			const height = 2*cellLine + 10
			s.text(margin, y+cellLine, small, margin+nameWidth, "text", h.name)
			s.text(margin, y+2*cellLine, small, margin+nameWidth, "dim", h.platform+" "+h.snapshotter)
			for _, side := range sides {
				t, err := side.table(m.step, m.heading)
				if err != nil {
					return nil, err
				}
				if i >= len(t.rows) {
					return nil, fmt.Errorf("step %d has no row of handler %s", m.step, h.name)
				}
				drawCell(s, side.x, y, height, m.pods, t.rows[i])
			}
			y += height + 6
		}
	}
	y += 10
	for _, side := range sides {
		class := "good"
		if side.containers != ours.containers {
			class = "bad"
		}
		s.text(side.x, y+8, small, side.x+sideWidth, class, side.containers+" containers run at the end")
	}
	y += 30
	if len(stock.notes) > 0 {
		for _, line := range wrap("[1] "+stock.notes[0], chars(pageWidth-2*margin, small)) {
			s.text(margin, y, small, pageWidth-margin, "bad", line)
			y += cellLine
		}
		y += 5
	}
	s.height = y
	return s, nil
}

// describe returns the result of a run in one sentence.
func describe(r *run) string {
	_, result, _ := strings.Cut(r.result, ": ")
	if failed, ok := strings.CutSuffix(result, " failed these checks:"); ok {
		return fmt.Sprintf("%s failed checks; %s containers run at the end.", failed, r.containers)
	}
	return result
}

// drawCell draws what the node has for a handler.
func drawCell(s *svg, x, y, height float64, pods bool, r row) {
	limit := x + sideWidth
	target := r.platform + " " + r.snapshotter
	first, second := "image "+r.imageID+"  "+target, ""
	var bad bool
	switch {
	case !pods:
		first, second = "digest "+r.digest, "image "+r.imageID+"  "+target
		bad = r.wrong["digest"] || r.wrong["platform"] || r.wrong["snapshotter"]
	case strings.HasPrefix(r.output, "no pod"):
		second, bad = "no pod [1]", true
	default:
		second = "ran " + strings.NewReplacer("platform=", "", "version=", "").Replace(r.output)
		bad = r.wrong["output"] || r.wrong["platform"] || r.wrong["snapshotter"]
	}
	box, class := "goodbox", "good"
	if bad {
		box, class = "badbox", "bad"
	}
	s.rect(x, y+2, sideWidth, height-2, box)
	s.mark(x+10, y+cellLine+1, !bad)
	lines := []string{first, second}
	for i, text := range lines {
		c := "text"
		if i == 1 && pods || i == 0 && !pods {
			c = class
		}
		s.text(x+28, y+float64(i+1)*cellLine+1, small, limit-6, c, text)
	}
}
