package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/imagepin/imagepin/integration/svg"
)

// kind is the shape and color of a step.
type kind string

const (
	process  kind = "box"
	question kind = "askbox"
	runs     kind = "goodbox"
	fails    kind = "badbox"
	note     kind = "note"
)

// step is a box of a flowchart, in a cell of a grid. S is the situation that it asks about.
type step[S any] struct {
	name     string
	kind     kind
	col, row int
	wide     bool // two columns
	text     string
	// next has the name of the next step for each answer. "" is the answer of a step that asks nothing.
	next map[string]string
	// ask answers the question, and result is the outcome in the notation of the test.
	ask    func(S) string
	result func(S) string
}

// follow goes through a flowchart and returns the outcome, and the names of the steps.
func follow[S any](chart []step[S], s S) (outcome string, way []string, err error) {
	at := chart[0]
	for range len(chart) {
		way = append(way, at.name)
		if at.result != nil {
			return at.result(s), way, nil
		}
		answer := ""
		if at.ask != nil {
			answer = at.ask(s)
		}
		i := slices.IndexFunc(chart, func(n step[S]) bool { return n.name == at.next[answer] })
		if i < 0 {
			return "", way, fmt.Errorf("step %q has no answer %q", at.name, answer)
		}
		at = chart[i]
	}
	return "", way, fmt.Errorf("the flowchart does not end: %v", way)
}

const (
	flowSize   = 12.0
	flowLine   = 15.0
	boxWidth   = 250.0
	boxPadding = 10.0
	gapX       = 80.0
	gapY       = 42.0
	flowMargin = 20.0
	labelSize  = 11.0
)

func (n step[S]) width() float64 {
	if n.wide {
		return 2*boxWidth + gapX
	}
	return boxWidth
}

// lines returns the text as it is broken.
func (n step[S]) lines() []string {
	return svg.Wrap(n.text, svg.Chars(n.width()-2*boxPadding, flowSize))
}

func (n step[S]) height() float64 { return float64(len(n.lines()))*flowLine + 2*boxPadding }

// placedStep is a step with its place. All boxes of a row are as high as the highest one.
type placedStep[S any] struct {
	step[S]
	x, y, w, h float64
}

func place[S any](chart []step[S]) []placedStep[S] {
	var heights []float64
	for _, n := range chart {
		for len(heights) <= n.row {
			heights = append(heights, 0)
		}
		heights[n.row] = max(heights[n.row], n.height())
	}
	var out []placedStep[S]
	for _, n := range chart {
		y := flowMargin
		for _, h := range heights[:n.row] {
			y += h + gapY
		}
		out = append(out, placedStep[S]{n, flowMargin + float64(n.col)*(boxWidth+gapX), y, n.width(), heights[n.row]})
	}
	return out
}

// drawFlow draws a flowchart. Steps that follow each other are in neighboring cells, except where a line has room.
func drawFlow[S any](title string, chart []step[S]) []byte {
	return layFlow(chart).Finish(title, flowText(chart), svg.Colors)
}

func layFlow[S any](chart []step[S]) *svg.Picture {
	s := &svg.Picture{Page: true}
	all := place(chart)
	for _, n := range all {
		s.Width = max(s.Width, n.x+n.w+flowMargin)
		s.Height = max(s.Height, n.y+n.h+flowMargin)
	}
	for _, n := range all {
		// Two answers with the same next step share a line.
		labels := map[string][]string{}
		for _, answer := range sortedKeys(n.next) {
			labels[n.next[answer]] = append(labels[n.next[answer]], answer)
		}
		for _, name := range sortedKeys(labels) {
			to := slices.IndexFunc(all, func(o placedStep[S]) bool { return o.name == name })
			connect(s, n, all[to], labels[name])
		}
	}
	for _, n := range all {
		drawStep(s, n)
	}
	return s
}

func drawStep[S any](s *svg.Picture, n placedStep[S]) {
	if n.kind != note {
		s.Rect(n.x, n.y, n.w, n.h, string(n.kind))
	}
	lines := n.lines()
	top := n.y + (n.h-float64(len(lines))*flowLine)/2 + flowLine - 4
	class := map[kind]string{runs: "good", fails: "bad", note: "dim"}[n.kind]
	if class == "" {
		class = "text"
	}
	for i, line := range lines {
		s.Text(n.x+boxPadding, top+float64(i)*flowLine, flowSize, n.x+n.w-boxPadding/2, class, line)
	}
}

// connect draws the line between two steps, with the answers that lead there.
func connect[S any](s *svg.Picture, from, to placedStep[S], answers []string) {
	x, right, middle := from.x+boxWidth/2, from.x+from.w, from.y+from.h/2
	label := func(x, y, limit float64) {
		for i, a := range answers {
			if a != "" {
				s.Text(x, y+float64(i)*13, labelSize, limit, "dim", a)
			}
		}
	}
	switch {
	case to.col == from.col && to.row > from.row: // down
		arrow(s, at(x, from.y+from.h), at(x, to.y))
		label(x+8, from.y+from.h+18, right+gapX/2-4)
	case to.col == from.col: // up
		arrow(s, at(x, from.y), at(x, to.y+to.h))
		label(x+8, from.y-18, right+gapX/2-4)
	case to.row == from.row: // right
		arrow(s, at(right, middle), at(to.x, middle))
		label(right+4, middle-6, to.x-2)
	default: // out at the right, down in the gap, in from above
		out, gap, in, turn := from.y+from.h-10, right+gapX/2, to.x+60, to.y-gapY/2
		arrow(s, at(right, out), at(gap, out), at(gap, turn), at(in, turn), at(in, to.y))
		label(in+8, to.y-gapY/2+float64(17-13*(len(answers)-1)), to.x+to.w)
	}
}

func at(x, y float64) svg.Point { return svg.Point{X: x, Y: y} }

// arrow draws a line through points, with horizontal and vertical parts, and a head at its end.
func arrow(s *svg.Picture, points ...svg.Point) {
	var path strings.Builder
	for i, p := range points {
		if i > 0 {
			s.Lines = append(s.Lines, [2]svg.Point{points[i-1], p})
		}
		if i == len(points)-1 { // the head covers the end
			from := points[i-1]
			dx, dy := sign(p.X-from.X), sign(p.Y-from.Y)
			head(s, p.X, p.Y, dx, dy)
			p = at(p.X-6*dx, p.Y-6*dy)
		}
		fmt.Fprintf(&path, "L%s %s", svg.N(p.X), svg.N(p.Y))
	}
	s.Add(`<path class="line" d="M%s"/>`, path.String()[1:])
}

func head(s *svg.Picture, x, y, dx, dy float64) {
	s.Add(`<path class="head" d="M%s %sL%s %sL%s %sz"/>`, svg.N(x), svg.N(y),
		svg.N(x-8*dx-4*dy), svg.N(y-8*dy-4*dx), svg.N(x-8*dx+4*dy), svg.N(y-8*dy+4*dx))
}

func sign(v float64) float64 {
	switch {
	case v > 0:
		return 1
	case v < 0:
		return -1
	}
	return 0
}

// flowText returns the flowchart as text, for readers who do not see it.
func flowText[S any](chart []step[S]) string {
	var text string
	for _, n := range chart {
		text += n.text
		for _, answer := range sortedKeys(n.next) {
			to := chart[slices.IndexFunc(chart, func(o step[S]) bool { return o.name == n.next[answer] })]
			if answer != "" {
				text += fmt.Sprintf(" %s: %s", answer, to.text)
			}
		}
		text += "\n"
	}
	return text
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
