package main

import (
	"context"
	"fmt"
	"time"
)

// unit is what a number counts.
type unit int

const (
	duration unit = iota // nanoseconds
	bytes_               // bytes
	count
)

// row is one line of the table: one number that is measured on both sides.
type row struct {
	name   string
	unit   unit
	budget budget
	// gain says that the number is a difference by itself, so that a ratio of it says nothing.
	gain bool
	// x places the row on a plot: the row belongs to the curve of that name, at that number of images.
	curve string
	x     int
}

// sample is what one run on one side gives: a number for each of the scenario's rows, by the row's name. A row that only
// imagepin has is missing in stock's.
type sample map[string]float64

func (s sample) took(name string, d time.Duration) { s[name] = float64(d) }

// scenario is work that both sides do in turns.
type scenario struct {
	rows []row
	// fleet is what the daemons of both sides are started with.
	fleet fleet
	// setup prepares both sides; nothing of it is measured.
	setup func(ctx context.Context, b *bench, p *pair) error
	// run does the work once on one side.
	run func(ctx context.Context, b *bench, s *side) (sample, error)
	// stockFails says that stock may not be able to do it: its error is shown in the table then.
	stockFails bool
	// fraction is how often both sides do it, as a part of the repetitions asked for: 0 is all of them, 2 half of them.
	fraction int
	// restarts says that run starts the daemon anew, which ends a profile.
	restarts bool
}

// once is the fraction of what is done once, whatever is asked for.
const once = 1 << 20

func (s scenario) repetitions(asked int) int { return max(1, asked/max(1, s.fraction)) }

// sizes are how large things are.
type sizes struct {
	images    []int // numbers of images on a node
	layerSize int64 // bytes of each of the eight layers
	layerN    int   // files in each of them
	warm      int   // calls that one sample is the median of
	small     int   // cold pulls of a small image that one sample is the median of
	equal     int   // equal pulls at one time
	different int   // different images, four at a time
	list      int   // containers to list
	churn     int   // pulls and removals of the leak check
	// idle is how long a daemon is left alone before its memory and its goroutines are looked at.
	idle time.Duration
}

var (
	fullSizes  = sizes{images: []int{10, 1_000, 10_000}, layerSize: 30 << 20, layerN: 3_000, warm: 50, small: 10, equal: 100, different: 50, list: 100, churn: 1_000, idle: 5 * time.Second}
	quickSizes = sizes{images: []int{10, 100}, layerSize: 1 << 20, layerN: 50, warm: 5, small: 2, equal: 10, different: 8, list: 5, churn: 16, idle: 500 * time.Millisecond}
)

// thousands writes a number as people do.
func thousands(n int) string {
	if n < 1_000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1_000), n%1_000)
}
