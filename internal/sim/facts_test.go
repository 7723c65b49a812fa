package sim

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
)

// facts are the events of a history that the checks need.
type facts struct {
	mu         sync.Mutex
	otherTools atomic.Bool
	toolAt     atomic.Int64 // step of the last write of another tool, or of a removal that followed one
	killedAt   atomic.Int64 // step of the last kill
	unpinned   atomic.Bool  // an operator has set or removed a pin
	refreshed  atomic.Bool
	pins       sync.Map // names of pins that were created
	movedByCRI sync.Map // names of records that containerd's CRI has moved to a target that it read earlier
	ops        []*op
	pinWrites  []*pinWrite
	locks      []*pinWrite // the writes of the record of the lock
}

// pinWrite is a write of a pin's record.
type pinWrite struct {
	name string
	step int
	done int           // the step at which the writer knows it, and the pin is in effect; 0 before that
	lost bool          // the writer got no answer, so the pin is in effect after the next list of the pins
	root digest.Digest // "" if the pin was deleted
	by   string        // the actor
	lock *lockState    // of the record of the lock
}

// pinWritten notes a write. The writer calls done when the write has returned, with the error of the answer.
func (f *facts) pinWritten(name string, step int, root digest.Digest) (done func(step int, answer error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &pinWrite{name: name, step: step, root: root}
	f.pinWrites = append(f.pinWrites, w)
	return func(step int, answer error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if w.lost = answer != nil; !w.lost {
			w.done = step
		}
	}
}

// pinsListed notes a list of the pins that began at a step and has returned.
func (f *facts) pinsListed(began, step int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.pinWrites {
		if w.lost && w.step <= began {
			w.done, w.lost = step, false
		}
	}
}

// pinMoved reports whether the pin of a call had another digest at any time during the call than at its start, or was not
// in effect yet when the call began.
func (f *facts) pinMoved(o *op) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.pinWrites, func(w *pinWrite) bool {
		return w.name == o.scope+"/"+o.ref && (w.step >= o.start && w.root != o.pinned || w.step < o.start && (w.done == 0 || w.done >= o.start))
	})
}

// op is one call, or one action of another tool.
type op struct {
	actor, method, ref, handler string
	start, end                  int
	ended                       bool
	began                       time.Time
	took                        time.Duration
	id                          string        // image ID of the call
	root                        digest.Digest // target of the record that ctr writes
	scope                       string        // scope of the pin that applies, or ""
	pinned                      digest.Digest // digest of that pin when the call began
	sandbox                     string        // sandbox of the pod
	container                   string        // container that the call created
	wasPinned                   bool          // a pin existed when the call began or ended
	removes                     bool
	denied                      bool // the registry accepts no such caller
	detached                    bool // the apply goes on after the call
	err                         error
}

func (f *facts) tool(step int) {
	f.otherTools.Store(true)
	f.toolAt.Store(int64(step))
}

// toolWrote reports whether another tool has written since a step.
func (f *facts) toolWrote(since int) bool {
	return f.otherTools.Load() && f.toolAt.Load() >= int64(since)
}

// removed reports whether a removal of an image ran at or after a step.
func (f *facts) removed(id string, since int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.ops, func(o *op) bool {
		return o.removes && (o.id == id || o.id == "") && (!o.ended || o.end >= since)
	})
}

// sharedSince returns the earliest step at which another call can have started the work that a call waits for.
func (f *facts) sharedSince(o *op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := o.start
	for changed := true; changed; {
		changed = false
		for _, other := range f.ops {
			if other.ref == o.ref && other.start < since && (!other.ended || other.end >= since) {
				since, changed = other.start, true
			}
		}
	}
	return since
}

// concurrent reports whether another call for the same reference ran at the same time.
func (f *facts) concurrent(o *op) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.ops, func(other *op) bool {
		return other != o && other.ref == o.ref && (!other.ended || other.end >= o.start)
	})
}

// pinning reports whether a pin of the reference was being moved when a call began.
func (f *facts) pinning(o *op) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.ops, func(other *op) bool {
		return other.method == "SetPin" && other.ref == o.ref && other.start <= o.start && (!other.ended || other.end >= o.start)
	})
}
