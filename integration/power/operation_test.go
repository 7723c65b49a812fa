package power

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/imagepin/imagepin/integration/power/disk"
)

// operation is what a machine does when it loses power.
type operation struct {
	name string
	// begin is done before the first cut.
	begin func(m *machine, p *promise)
	steps []step
	// pulls are pulled after each boot, beside those of the fleet.
	pulls []pulled
	// during is the number of cuts between the beginning and the success in each round, after the number of cuts after it.
	during, after int
}

// step is a part of an operation that succeeds by itself.
type step struct {
	do func(w *working) error
	// may changes the promise to what holds while the step runs, done to what holds after it.
	may, done func(p *promise)
}

// promises returns what holds when some steps of an operation have succeeded and the next one may have begun.
func (o operation) promises(before promise, succeeded int) promise {
	p := before.clone()
	for i, s := range o.steps[:min(succeeded+1, len(o.steps))] {
		if s.may != nil {
			s.may(&p)
		}
		if i < succeeded && s.done != nil {
			s.done(&p)
		}
	}
	return p
}

// cut is a disk after a power loss.
type cut struct {
	disk    *disk.Disk
	when    string
	promise promise
	pulls   []pulled // after the boot
}

// maxDelay is the maximum time between a success and a cut. ext4 commits its journal every five seconds.
const maxDelay = 6 * time.Second

// working is a machine that runs an operation.
type working struct {
	*machine
	operation
	disk      *disk.Disk
	before    promise
	succeeded atomic.Int64 // steps
	cuts      []cut
}

// cutNow cuts power at this moment. The machine goes on.
func (w *working) cutNow(when string) {
	w.cuts = append(w.cuts, cut{w.disk.Cut(), when, w.promises(w.before, int(w.succeeded.Load())), w.pulls})
}

// cut runs an operation on a machine with the disk "installed", and returns what it has on its disk at several moments.
func (f *fleet) cut(o operation) []cut {
	f.t.Helper()
	d := f.installed.Cut()
	d.SetVolatileCache()
	w := &working{machine: f.machine, operation: o, disk: d, before: f.promised.clone()}
	w.boot(d)
	if o.begin != nil {
		o.begin(w.machine, &w.before)
	}
	d.BeginSamples(o.during, func() int { return int(w.succeeded.Load()) })
	for _, s := range o.steps {
		if err := s.do(w); err != nil {
			f.t.Fatalf("%s: %v", o.name, err)
		}
		w.succeeded.Add(1)
	}
	ended := time.Now()
	for _, s := range d.EndSamples() {
		when := fmt.Sprintf("after %d of %d steps", s.Label, len(o.steps))
		w.cuts = append(w.cuts, cut{s.Disk, when, o.promises(w.before, s.Label), o.pulls})
	}
	for i := range o.after {
		// The first cut is as early as possible: the kernel has written the least then. A later one is at a random time,
		// because the kernel writes at times of its own.
		if i > 0 {
			time.Sleep(time.Until(ended.Add(rand.N(maxDelay))))
		}
		w.cutNow(fmt.Sprintf("%s after the success", time.Since(ended).Round(time.Millisecond)))
	}
	d.Off()
	w.losePower()
	return w.cuts
}
