package main

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// checkCourses checks that the worst moments of a node have courses in which time passes.
func checkCourses(t *testing.T, all []rawCourse) {
	t.Helper()
	var got []string
	for _, c := range all {
		what, _, _ := strings.Cut(c.Metric, ",")
		got = append(got, what)
		for side, run := range map[string][]moment{"stock": c.Stock, "imagepin": c.Ours} {
			if len(run) < 2 || run[len(run)-1].RSS <= 0 || run[len(run)-1].CPU <= 0 {
				t.Errorf("%s, %s: got %+v", c.Metric, side, run)
			}
			for i := 1; i < len(run); i++ {
				if run[i].At <= run[i-1].At || run[i].CPU < run[i-1].CPU {
					t.Errorf("%s, %s: %+v is after %+v", c.Metric, side, run[i], run[i-1])
				}
			}
		}
	}
	if want := []string{"boot", "drain", "scale-up"}; !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("got courses of %v, want %v", got, want)
	}
}

// TestCourse checks the curves of a run, and which run is drawn.
func TestCourse(t *testing.T) {
	run := []moment{
		{At: 100 * time.Millisecond, CPU: time.Second, RSS: 50e6},
		{At: 200 * time.Millisecond, CPU: time.Second + 150*time.Millisecond, RSS: 60e6},
		{At: 400 * time.Millisecond, CPU: time.Second + 250*time.Millisecond, RSS: 80e6},
		{At: 401 * time.Millisecond, CPU: time.Second + 260*time.Millisecond, RSS: 80e6},
	}
	near := func(got, want float64) bool { return math.Abs(got-want) < 1e-9 }
	if got := processors(run); len(got) != 2 || !near(got[0].X, 0.2) || !near(got[0].Y, 1.5) || !near(got[1].X, 0.4) || !near(got[1].Y, 0.5) {
		t.Errorf("got processors %v", got)
	}
	if got := megabytes(run); len(got) != len(run) || !near(got[2].X, 0.4) || !near(got[2].Y, 80) {
		t.Errorf("got megabytes %v", got)
	}
	if got := medianRun([][]moment{run, nil, run[:1], run[:2]}); len(got) != 2 {
		t.Errorf("got the run %v, want the one that took 0.2 s", got)
	}
	if got := medianRun([][]moment{nil}); got != nil {
		t.Errorf("got the run %v of none", got)
	}
	c := &course{name: "boot, 2 pods"}
	c.last = run
	c.keep(true)
	all, err := drawAll(nil, []*course{c})
	if err != nil || len(all) != 2 {
		t.Fatalf("got %d figures, %v", len(all), err)
	}
	for name, text := range map[string]string{"boot-2-pods-busy-processors.svg": "boot, 2 pods: busy processors", "boot-2-pods-memory-rss-mb.svg": "memory (RSS), MB"} {
		wellFormed(t, all[name])
		for _, s := range []string{text, "seconds", ">imagepin<"} {
			if !strings.Contains(string(all[name]), s) {
				t.Errorf("%s lacks %q:\n%s", name, s, all[name])
			}
		}
		if strings.Contains(string(all[name]), ">stock<") {
			t.Errorf("%s has a line of stock, which was not measured", name)
		}
	}
}

// TestWatchDaemon watches this process, and one that does not exist.
func TestWatchDaemon(t *testing.T) {
	start := time.Now()
	got, err := watchDaemon(os.Getpid(), start)()
	if err != nil || len(got) < 2 || got[0].RSS <= 0 || got[len(got)-1].At > time.Since(start) {
		t.Errorf("got %+v, %v, want a moment at the begin and one at the end", got, err)
	}
	if _, err := watchDaemon(-1, start)(); err == nil {
		t.Error("no process: got no error")
	}
}
