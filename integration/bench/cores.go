package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

// coreStep is how often the processors are looked at during a pull. Their times are counted in hundredths of a second.
const coreStep = 50 * time.Millisecond

// watchCores records how busy each processor is until the returned function is called. That returns a line for each processor, with
// a digit for each [coreStep]: the tenths of the time that it was busy; 9 is 90% and more.
func watchCores() (stop func() ([]string, error)) {
	ending, ended := make(chan struct{}), make(chan error, 1)
	var lines []strings.Builder
	go func() {
		ended <- func() error {
			tick := time.NewTicker(coreStep)
			defer tick.Stop()
			before, err := measure.CoreTimes()
			if err != nil {
				return err
			}
			lines = make([]strings.Builder, len(before))
			for at := time.Now(); ; {
				select {
				case <-ending:
					return nil
				case <-tick.C:
				}
				now, err := measure.CoreTimes()
				if err != nil || len(now) != len(before) {
					return cmp.Or(err, fmt.Errorf("%d processors became %d", len(before), len(now)))
				}
				took := time.Since(at)
				for i := range now {
					lines[i].WriteByte(busyDigit(now[i]-before[i], took))
				}
				before, at = now, at.Add(took)
			}
		}()
	}()
	return func() ([]string, error) {
		close(ending)
		if err := <-ended; err != nil {
			return nil, err
		}
		all := make([]string, len(lines))
		for i := range lines {
			all[i] = lines[i].String()
		}
		return all, nil
	}
}

// busyDigit returns the digit for a processor that was busy for a part of the time.
func busyDigit(busy, of time.Duration) byte {
	return '0' + byte(min(9, 10*busy/max(1, of)))
}

// coresTable writes how busy the processors were in one pull of each side: the one whose time is the median. It writes nothing if
// that was not recorded. The table begins with an empty line.
func coresTable(w io.Writer, all []*shares) error {
	lines := [][]string{{"cold pull", "processor", "busy, in tenths of each " + measure.Duration(coreStep)}}
	for _, s := range all {
		for _, side := range []struct {
			name  string
			turns []turn
		}{{"stock", s.stock}, {"imagepin", s.ours}} {
			if len(side.turns) == 0 {
				continue
			}
			turns := slices.SortedFunc(slices.Values(side.turns), func(a, b turn) int { return cmp.Compare(a.Wall, b.Wall) })
			for i, line := range strings.Fields(turns[len(turns)/2].Cores) {
				lines = append(lines, []string{strings.TrimPrefix(s.name, coldPrefix) + ": " + side.name, fmt.Sprint(i), line})
			}
		}
	}
	if len(lines) == 1 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return measure.Table(w, lines, true)
}
