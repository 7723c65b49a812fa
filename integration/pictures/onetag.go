package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/imagepin/imagepin/integration/svg"
)

// moment is a part of the picture: what both sides have after a step.
type moment struct {
	title string
	step  int
	// heading begins the paragraph above the table of the step. Empty means that the picture has no row of a handler.
	heading string
	// pods is true if the picture shows what ran, otherwise the digest.
	pods bool
	// replicas has the revision and the number of each pod of the Deployment that the picture shows.
	replicas [][2]string
}

var moments = []moment{
	{title: "1. Pull the tag for each handler, and run a pod for each", step: 3, heading: "Run a pod", pods: true},
	{title: "2. The tag moves to %[2]s. Pull it for runc only: which digest has each handler?", step: 4, heading: "The node after a pull"},
	{title: "3. Run another pod of a Deployment whose revision 1 runs %[1]s, and one of its new revision", step: 5, replicas: [][2]string{{"1", "2"}, {"2", "1"}}},
	{title: "4. Kill containerd, stop the registry, start containerd: a new pod for each handler and revision", step: 6, heading: "The node after a new pod",
		pods: true, replicas: [][2]string{{"1", "3"}}},
}

// whyStep is the step whose result needs an explanation.
const whyStep = 4

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
	return s.Finish("One tag on one node, with stock containerd and with imagepin",
		"For each of three runtime handlers: what the node has for the tag, and what ran. "+describe(stock)+" "+describe(ours), svg.Colors), nil
}

func layOneTag(stock, ours *run) (*svg.Picture, error) {
	s := &svg.Picture{Width: pageWidth, Page: true}
	y := 30.0
	sides := []struct {
		x float64
		*run
	}{{margin + nameWidth, stock}, {margin + nameWidth + 20 + sideWidth, ours}}
	s.Text(margin, y, 13, pageWidth-margin, "text",
		fmt.Sprintf("One tag, app:stable, for three runtime handlers of one node: %s and %s", ours.handlers[0].platform, ours.handlers[2].platform))
	y += 19
	s.Text(margin, y, small, pageWidth-margin, "dim", "containerd discards layers after it has unpacked them (discard_unpacked_layers = true)")
	y += 31
	for _, side := range sides {
		s.Text(side.x, y, 13, side.x+sideWidth, "text", side.containerd)
	}
	s.Text(margin, y, small, margin+nameWidth, "dim", "handler wants")
	y += 12
	const height = 2*cellLine + 10
	for _, m := range moments {
		title := m.title
		if strings.Contains(title, "%") {
			title = fmt.Sprintf(title, ours.moved[0], ours.moved[1])
		}
		y += 20
		s.Text(margin, y, small, pageWidth-margin, "text", title)
		y += 9
		if m.step == whyStep {
			for _, line := range svg.Wrap(ours.why, svg.Chars(pageWidth-2*margin, small)) {
				s.Text(margin, y+9, small, pageWidth-margin, "dim", line)
				y += cellLine
			}
		}
		for i, h := range ours.handlers {
			if m.heading == "" {
				break
			}
			s.Text(margin, y+cellLine, small, margin+nameWidth, "text", h.name)
			s.Text(margin, y+2*cellLine, small, margin+nameWidth, "dim", h.platform+" "+h.snapshotter)
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
		for _, name := range m.replicas {
			s.Text(margin, y+cellLine, small, margin+nameWidth, "text", "revision "+name[0])
			s.Text(margin, y+2*cellLine, small, margin+nameWidth, "dim", "pod "+name[1]+", "+ours.handlers[0].name)
			for _, side := range sides {
				if err := drawReplica(s, side.x, y, height, side.run, m.step, name); err != nil {
					return nil, err
				}
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
		s.Text(side.x, y+8, small, side.x+sideWidth, class, side.containers+" containers run at the end")
	}
	y += 30
	if len(stock.notes) > 0 {
		for _, line := range svg.Wrap("[1] "+cause(stock.notes[0]), svg.Chars(pageWidth-2*margin, small)) {
			s.Text(margin, y, small, pageWidth-margin, "bad", line)
			y += cellLine
		}
		y += 5
	}
	s.Height = y
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
func drawCell(s *svg.Picture, x, y, height float64, pods bool, r row) {
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
		second = ran(r.output)
		bad = r.wrong["output"] || r.wrong["platform"] || r.wrong["snapshotter"]
	}
	i := 0
	if pods {
		i = 1
	}
	drawLines(s, x, y, height, bad, i, first, second)
}

// drawReplica draws what a pod of a revision ran.
func drawReplica(s *svg.Picture, x, y, height float64, r *run, step int, name [2]string) error {
	i := slices.IndexFunc(r.replicas[step], func(p replica) bool { return p.revision == name[0] && p.pod == name[1] })
	if i < 0 {
		return fmt.Errorf("step %d has no pod %s of revision %s", step, name[1], name[0])
	}
	p := r.replicas[step][i]
	pin := "no pin"
	if p.pin != "none" {
		pin = "pinned to " + p.pin
	}
	drawLines(s, x, y, height, p.wrong, 1, pin, ran(p.output))
	return nil
}

// ran returns what a container printed, shorter.
func ran(output string) string {
	return "ran " + strings.NewReplacer("platform=", "", "version=", "").Replace(output)
}

// drawLines draws a cell of two lines, one of which has the color of the result.
func drawLines(s *svg.Picture, x, y, height float64, bad bool, colored int, lines ...string) {
	box, class := "goodbox", "good"
	if bad {
		box, class = "badbox", "bad"
	}
	s.Rect(x, y+2, sideWidth, height-2, box)
	s.Mark(x+10, y+cellLine+1, !bad)
	for i, text := range lines {
		c := "text"
		if i == colored {
			c = class
		}
		s.Text(x+28, y+float64(i+1)*cellLine+1, small, x+sideWidth-6, c, text)
	}
}

// cause returns the call that failed, and the end of a long error.
func cause(note string) string {
	parts := strings.Split(note, ": ")
	if len(parts) < 3 {
		return note
	}
	return parts[0] + ": ... " + strings.Join(parts[len(parts)-2:], ": ")
}
