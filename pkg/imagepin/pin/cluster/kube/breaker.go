package kube

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
)

const (
	firstPause = time.Second
	maxPause   = 30 * time.Second
	// pauseJitter spreads the ends of the pauses of many nodes.
	pauseJitter = 0.25
)

// breaker lets calls fail at once after a failure that also concerns other calls (a circuit breaker). After a pause, it
// lets one call through at a time. A failure of that call doubles the pause, up to maxPause. The success of any call ends
// it.
type breaker struct {
	now func() time.Time

	mu      sync.Mutex
	failure *failure // nil: calls pass
	pause   time.Duration
	until   time.Time
	probing bool
	epoch   int // the number of changes
}

// pass is the permission to call. Its holder returns it with one of the methods of the breaker.
type pass struct{ epoch int }

// enter returns a pass, or the failure because of which the call is not made.
func (b *breaker) enter() (pass, *failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure != nil {
		if b.probing || b.now().Before(b.until) {
			return pass{}, b.failure
		}
		b.probing = true
	}
	return pass{b.epoch}, nil
}

// reset ends the pause, after the success of any call. ended reports whether there was one.
func (b *breaker) reset() (ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure == nil {
		return false
	}
	b.failure, b.pause, b.probing = nil, 0, false
	b.epoch++
	return true
}

// paused reports whether there is a pause, or it has ended without a success.
func (b *breaker) paused() bool { return b.last() != nil }

// last returns the last failure if there was no success after it.
func (b *breaker) last() *failure {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failure
}

// fail begins a pause, or the next one. It has no effect if another call has changed the state since p was given: of
// several calls that fail at one time, only the first counts. first reports whether there was no pause before.
func (b *breaker) fail(p pass, f *failure) (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.epoch != b.epoch {
		return false
	}
	first = b.failure == nil
	b.failure, b.pause, b.probing = f, pause.Next(b.pause, firstPause, maxPause), false
	b.until = b.now().Add(wait.Jitter(b.pause, pauseJitter))
	b.epoch++
	return first
}

// giveUp returns a pass of a call that shows neither: its caller did not wait for it.
func (b *breaker) giveUp(p pass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.epoch == b.epoch {
		b.probing = false
	}
}
