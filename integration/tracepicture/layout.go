package main

import "time"

// Sizes of the picture in pixels. The columns are names, the bars, durations with their ends at a line, and notes.
const (
	width      = 980.0
	barsLeft   = 345.0
	barsRight  = 740.0
	durationsX = 808.0
	notesX     = 816.0
	top        = 52.0 // the first row
	rowHeight  = 20.0
	bottom     = 14.0 // below the last row
	indent     = 12.0 // of the name, for each span above
	margin     = 12.0
	minBar     = 1.5
)

// box is a span with its place in the picture.
type box struct {
	*span
	// X and Width are those of the bar. Y is the upper end of the row.
	X, Width, Y float64
	// NameX is the start of the name.
	NameX float64
	Below []*box
}

// tick is a time on the axis.
type tick struct {
	X  float64
	At time.Duration
}

// layout is a picture of a trace.
type layout struct {
	Root   *box
	Ticks  []tick
	Height float64
}

// layOut places the spans of a trace: one row for each, below that of its parent.
func layOut(root *span) layout {
	total := root.end()
	rows := 0
	var place func(s *span, depth int) *box
	place = func(s *span, depth int) *box {
		b := &box{
			span: s, NameX: margin + float64(depth)*indent, Y: top + float64(rows)*rowHeight,
			X: xOf(s.Start, total), Width: max(minBar, xOf(s.Start+s.Duration, total)-xOf(s.Start, total)),
		}
		rows++
		for _, c := range s.Children {
			b.Below = append(b.Below, place(c, depth+1))
		}
		return b
	}
	l := layout{Root: place(root, 0)}
	for at := time.Duration(0); at <= total; at += stepOf(total) {
		l.Ticks = append(l.Ticks, tick{xOf(at, total), at})
	}
	l.Height = top + float64(rows)*rowHeight + bottom
	return l
}

// end returns when the span and all spans below it have ended.
func (s *span) end() time.Duration {
	end := s.Start + s.Duration
	for _, c := range s.Children {
		end = max(end, c.end())
	}
	return end
}

// xOf returns the place of a time between the start and the end of a trace.
func xOf(at, total time.Duration) float64 {
	return barsLeft + (barsRight-barsLeft)*float64(at)/float64(max(total, 1))
}

// stepOf returns the time between two ticks: 1, 2 or 5 times a power of ten, so that there are at most six.
func stepOf(total time.Duration) time.Duration {
	for power := time.Microsecond; ; power *= 10 {
		for _, factor := range []time.Duration{1, 2, 5} {
			if step := factor * power; total/step < 6 {
				return step
			}
		}
	}
}
