package power

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/power/disk"
)

// cuts returns the number of cuts of both modes.
func cuts(t *testing.T) int {
	t.Helper()
	s := os.Getenv("IMAGEPIN_POWER_CUTS")
	if s == "" {
		return 40
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("IMAGEPIN_POWER_CUTS: %v", err)
	}
	return n
}

var modes = []node.Mode{node.Plugin, node.Serve}

// TestPower cuts power while a node pulls, applies a lock, goes back, sets pins, repairs or uninstalls, and up to two seconds
// later. After each boot all invariants hold. Every second cut also loses a half of what the disk had in its volatile cache.
func TestPower(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, mode, true)
			violations := map[invariant]int{}
			done := 0
			for want := cuts(t) / len(modes); done < want; {
				for _, o := range f.operations() {
					for _, c := range f.cut(o) {
						done++
						for _, v := range f.verify(c.disk, c.promise) {
							violations[v.invariant]++
							t.Errorf("%s, cut %s: not true that %s: %s", o.name, c.when, v.invariant, v.text)
						}
					}
				}
			}
			t.Logf("%d cuts; violations: %v", done, violations)
		})
	}
}

// TestWithoutSync cuts power when a pull has succeeded. If pulls are not synced, the image is then listed and damaged, which
// shows that this stage finds it.
func TestWithoutSync(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, mode, false)
			o := f.pull()
			o.during, o.after = 0, 1
			for _, c := range f.cut(o) {
				damaged := false
				for _, v := range f.verify(c.disk, c.promise) {
					t.Logf("%s: %s", v.invariant, v.text)
					damaged = damaged || v.invariant == intact
				}
				if !damaged {
					t.Errorf("nothing is damaged in a cut %s", c.when)
				}
			}
		})
	}
}

// cut is a disk after a power loss.
type cut struct {
	disk    *disk.Disk
	when    string
	promise promise
}

// maxDelay is the maximum time between a success and a cut.
const maxDelay = 2 * time.Second

// cut runs an operation on a machine with the disk "installed", and returns the disk at several moments.
func (f *fleet) cut(o operation) (cuts []cut) {
	f.t.Helper()
	m := f.machine
	d := f.installed.Cut()
	d.SetVolatileCache()
	m.boot(d)
	before := f.promised.clone()
	if o.begin != nil {
		o.begin(m, &before)
	}
	var succeeded atomic.Int64
	d.BeginSamples(o.during, func() int { return int(succeeded.Load()) })
	for _, s := range o.steps {
		if err := s.do(m); err != nil {
			f.t.Fatalf("%s: %v", o.name, err)
		}
		succeeded.Add(1)
	}
	ended := time.Now()
	for _, s := range d.EndSamples() {
		when := fmt.Sprintf("after %d of %d steps", s.Label, len(o.steps))
		cuts = append(cuts, cut{s.Disk, when, o.promises(before, s.Label)})
	}
	for i := range o.after {
		// The first cut is as early as possible. The kernel has then written the least.
		if i > 0 {
			time.Sleep(time.Until(ended.Add(time.Duration(rand.Int64N(int64(maxDelay))))))
		}
		when := fmt.Sprintf("%s after the success", time.Since(ended).Round(time.Millisecond))
		cuts = append(cuts, cut{d.Cut(), when, o.promises(before, len(o.steps))})
	}
	d.Off()
	m.losePower()
	return cuts
}
