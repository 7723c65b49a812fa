package durable

import (
	"context"
	"sync"
	"time"
)

// rounds calls do for callers of wait, one call after the other. Callers that wait for a call to begin share it.
type rounds struct {
	do func() error

	mu      sync.Mutex
	running bool
	next    *round // begins when the running one has ended; nil if nobody waits

	failed   error // of the last call that failed
	failedAt time.Time
}

// round is one call of do.
type round struct {
	done chan struct{} // closed at the end
	err  error
}

// wait returns the result of a call of do that begins after wait was called. It returns before if ctx ends.
func (r *rounds) wait(ctx context.Context) error {
	joined := r.join()
	select {
	case <-joined.done:
		return joined.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join returns a call that has not begun.
func (r *rounds) join() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &round{done: make(chan struct{})}
	}
	if !r.running {
		r.running = true
		go r.run()
	}
	return r.next
}

// run calls do until nobody waits.
func (r *rounds) run() {
	for {
		r.mu.Lock()
		now := r.next
		r.next = nil
		if now == nil {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		if now.err = r.do(); now.err != nil {
			r.mu.Lock()
			r.failed, r.failedAt = now.err, time.Now()
			r.mu.Unlock()
		}
		close(now.done)
	}
}

// failedSince returns the error of the last call that has failed since a time, or nil.
func (r *rounds) failedSince(t time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil || r.failedAt.Before(t) {
		return nil
	}
	return r.failed
}
