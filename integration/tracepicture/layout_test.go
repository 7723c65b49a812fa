package main

import (
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// TestLayout checks where spans are placed: in time, by row and by depth.
func TestLayout(t *testing.T) {
	root := &span{Name: "a", Duration: 100 * ms, Children: []*span{
		{Name: "b", Start: 25 * ms, Duration: 50 * ms, Children: []*span{
			{Name: "c", Start: 50 * ms, Duration: 150 * ms}, // ends after those above
		}},
		{Name: "d", Start: 100 * ms, Duration: time.Nanosecond},
	}}
	l := layOut(root)
	unit := (barsRight - barsLeft) / 200 // pixels in a millisecond
	var got []box
	var collect func(*box)
	collect = func(b *box) {
		got = append(got, *b)
		for _, c := range b.Below {
			collect(c)
		}
	}
	collect(l.Root)
	for i, want := range []struct {
		name                  string
		start, duration, deep float64
	}{{"a", 0, 100, 0}, {"b", 25, 50, 1}, {"c", 50, 150, 2}, {"d", 100, minBar / unit, 1}} {
		b := got[i]
		if b.Name != want.name || !near(b.X, barsLeft+want.start*unit) || !near(b.Width, want.duration*unit) ||
			!near(b.Y, top+float64(i)*rowHeight) || !near(b.NameX, margin+want.deep*indent) {
			t.Errorf("row %d: got %s at %+v, want %+v", i, b.Name, b, want)
		}
	}
	if want := top + 4*rowHeight + bottom; len(got) != 4 || !near(l.Height, want) {
		t.Errorf("got %d rows and height %g, want 4 and %g", len(got), l.Height, want)
	}
	if c := got[2]; !near(c.X+c.Width, barsRight) {
		t.Errorf("the last end is at %g, want %g", c.X+c.Width, barsRight)
	}
	var ticks []time.Duration
	for _, at := range l.Ticks {
		ticks = append(ticks, at.At)
		if !near(at.X, barsLeft+float64(at.At/ms)*unit) {
			t.Errorf("the tick of %s is at %g", at.At, at.X)
		}
	}
	if want := []time.Duration{0, 50 * ms, 100 * ms, 150 * ms, 200 * ms}; !slices.Equal(ticks, want) {
		t.Errorf("got ticks %v, want %v", ticks, want)
	}
}

func near(a, b float64) bool { return a-b < 0.01 && b-a < 0.01 }

// TestSteps checks the time between two ticks.
func TestSteps(t *testing.T) {
	for total, want := range map[time.Duration]time.Duration{
		0: time.Microsecond, 9 * ms: 2 * ms, 10 * ms: 2 * ms, 12 * ms: 5 * ms, 299 * ms: 50 * ms, 300 * ms: 100 * ms, 7 * time.Second: 2 * time.Second,
	} {
		if got := stepOf(total); got != want {
			t.Errorf("%s: got a step of %s, want %s", total, got, want)
		}
	}
}
