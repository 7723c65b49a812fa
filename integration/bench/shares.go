package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

// shares are where the time of the pulls of one row goes.
type shares struct {
	name string // of the row
	// imageTimes returns the times of the image after the pulls.
	imageTimes func(*bench) (imageTimes, error)
	image      imageTimes
	// last is the last pull. stock and ours are those that are kept, as in [result].
	last        turn
	stock, ours []turn
}

// keep adds the last pull to the turns of a side.
func (s *shares) keep(ours bool) {
	if ours {
		s.ours = append(s.ours, s.last)
	} else {
		s.stock = append(s.stock, s.last)
	}
}

// share adds the shares of a row to the table. Nothing else runs.
func (b *bench) share(s *shares) (err error) {
	syscall.Sync()
	s.image, err = s.imageTimes(b)
	b.shares = append(b.shares, s)
	return err
}

// medianTurn returns the median of each number.
func medianTurn(turns []turn) (m turn) {
	numbers := func(t *turn) []*time.Duration {
		return []*time.Duration{&t.Wall, &t.User, &t.Kernel, &t.Children, &t.Registry, &t.Rest, &t.Disk}
	}
	var written []float64
	all := make([][]float64, len(numbers(&m)))
	for _, t := range turns {
		for i, n := range numbers(&t) {
			all[i] = append(all[i], float64(*n))
		}
		written = append(written, t.Written)
	}
	for i, n := range numbers(&m) {
		*n = time.Duration(measure.Median(all[i]))
	}
	m.Written = measure.Median(written)
	return m
}

// floor is a time that a pull needs even if everything else takes none.
type floor struct {
	time  time.Duration
	setBy string
}

// floorOf returns the highest floor of a pull whose decompressor and whose download of all layers need these times.
func floorOf(t turn, decompression, download time.Duration, processors int) floor {
	return slices.MaxFunc([]floor{
		{(t.User + t.Kernel + t.Registry) / time.Duration(processors), "processors"},
		{decompression, "decompression"},
		{t.Disk, "disk"},
		{download, "download"},
	}, func(a, b floor) int { return cmp.Compare(a.time, b.time) })
}

// sharesTable writes the medians of all pulls on a machine with that many processors. It writes nothing if there are none.
func sharesTable(w io.Writer, all []*shares, processors int) error {
	lines := [][]string{{"cold pull", "time", "user", "kernel", "registry", "rest", "disk", "written", "decompression", "floor", "time ÷ floor", "set by"}}
	for _, s := range all {
		for _, side := range []struct {
			name          string
			turns         []turn
			decompression time.Duration
		}{{"stock", s.stock, s.image.Stock}, {"imagepin", s.ours, s.image.Ours}} {
			if len(side.turns) > 0 {
				lines = append(lines, s.cells(side.name, medianTurn(side.turns), side.decompression, processors))
			}
		}
	}
	if len(lines) == 1 {
		return nil
	}
	if err := measure.Table(w, lines, true); err != nil {
		return err
	}
	return coresTable(w, all)
}

// cells returns the cells of the pulls of a side.
func (s *shares) cells(side string, t turn, decompression time.Duration, processors int) []string {
	cells := []string{strings.TrimPrefix(s.name, coldPrefix) + ": " + side}
	for _, d := range []time.Duration{t.Wall, t.User, t.Kernel, t.Registry, t.Rest} {
		cells = append(cells, measure.Duration(d))
	}
	disk, written := "–", "–"
	if t.Disk > 0 {
		disk, written = measure.Duration(t.Disk), measure.Megabytes(t.Written)
	}
	f := floorOf(t, decompression, s.image.Download, processors)
	return append(cells, disk, written, measure.Duration(decompression),
		measure.Duration(f.time), fmt.Sprintf("%.2f", float64(t.Wall)/float64(f.time)), f.setBy)
}
