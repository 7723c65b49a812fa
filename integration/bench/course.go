package main

import (
	"cmp"
	"fmt"
	"image/color"
	"slices"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/imagepin/imagepin/integration/measure"
)

// courseStep is how often a daemon is looked at. Its processor time is counted in hundredths of a second.
const courseStep = 100 * time.Millisecond

// course is what the daemon has used over the time of each run of a row.
type course struct {
	name string // of the row
	// last is the last run. stock and ours are those that are kept, as in [result].
	last        []moment
	stock, ours [][]moment
}

// moment is what a daemon has used until a time after the begin, and its memory then. Times are in nanoseconds.
type moment struct {
	At  time.Duration `json:"at"`
	CPU time.Duration `json:"cpu"`
	RSS float64       `json:"rss"` // bytes
}

// keep adds the last run to those of a side.
func (c *course) keep(ours bool) {
	if ours {
		c.ours = append(c.ours, c.last)
	} else {
		c.stock = append(c.stock, c.last)
	}
}

// watchDaemon looks at a daemon until the returned function is called, which returns what was seen. start is the begin of the run.
func watchDaemon(pid int, start time.Time) (stop func() ([]moment, error)) {
	ending, ended := make(chan struct{}), make(chan error, 1)
	var all []moment
	look := func() error {
		used, err := measure.CPU(pid)
		if err != nil {
			return err
		}
		rss, err := measure.Resident(pid)
		all = append(all, moment{time.Since(start), used, rss})
		return err
	}
	go func() {
		tick := time.NewTicker(courseStep)
		defer tick.Stop()
		for {
			if err := look(); err != nil {
				ended <- err
				return
			}
			select {
			case <-ending:
				ended <- look()
				return
			case <-tick.C:
			}
		}
	}()
	return func() ([]moment, error) {
		close(ending)
		err := <-ended
		return all, err
	}
}

// medianRun returns the run whose time is the median, or nil.
func medianRun(runs [][]moment) []moment {
	runs = slices.DeleteFunc(slices.Clone(runs), func(r []moment) bool { return len(r) == 0 })
	if len(runs) == 0 {
		return nil
	}
	slices.SortFunc(runs, func(a, b []moment) int { return cmp.Compare(a[len(a)-1].At, b[len(b)-1].At) })
	return runs[len(runs)/2]
}

// processors returns how many processors were busy between moments, at the end of each step.
func processors(run []moment) (xys plotter.XYs) {
	for i, m := range run {
		if i == 0 || m.At-run[i-1].At < courseStep/2 { // too short for the resolution of the processor time
			continue
		}
		before := run[i-1]
		xys = append(xys, plotter.XY{X: m.At.Seconds(), Y: float64(m.CPU-before.CPU) / float64(m.At-before.At)})
	}
	return xys
}

// megabytes returns the memory.
func megabytes(run []moment) (xys plotter.XYs) {
	for _, m := range run {
		xys = append(xys, plotter.XY{X: m.At.Seconds(), Y: m.RSS / 1e6})
	}
	return xys
}

// figures draws the median runs of both sides, by the name of their file.
func (c *course) figures() (map[string]figure, error) {
	all := make(map[string]figure)
	for _, f := range []struct {
		what string
		of   func([]moment) plotter.XYs
	}{{"busy processors", processors}, {"memory (RSS), MB", megabytes}} {
		title := c.name + ": " + f.what
		g := newPlot(title)
		g.X.Label.Text = "seconds"
		addGrid(g)
		for _, side := range []struct {
			name  string
			color color.Color
			runs  [][]moment
		}{{"stock", stockColor, c.stock}, {"imagepin", oursColor, c.ours}} {
			xys := f.of(medianRun(side.runs))
			if len(xys) == 0 {
				continue
			}
			line, err := plotter.NewLine(xys)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", title, err)
			}
			line.Color, line.Width = side.color, 1.5
			g.Add(line)
			g.Legend.Add(side.name, line)
		}
		// After the plotters, which extend the ranges.
		g.X.Min, g.Y.Min = 0, 0
		g.Y.Max *= 1.3 // the legend is above the lines
		g.X.Padding, g.Y.Padding = 8, 4
		g.Legend.Top, g.Legend.Padding = true, 2
		all[fileName(title)+".svg"] = figure{g, 372, 236}
	}
	return all, nil
}
