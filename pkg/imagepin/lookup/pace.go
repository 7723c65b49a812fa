package lookup

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

const (
	// gap is the time between the beginnings of two lookups.
	gap = 250 * time.Millisecond
	// firstPause and longestPause are how long a registry is not asked after it was not available.
	firstPause, longestPause = time.Minute, time.Hour
	// longestRetryAfter is the longest pause that a registry can ask for.
	longestRetryAfter = 24 * time.Hour
)

// pace gives lookups their turn. The zero value is ready for use.
type pace struct {
	mu   sync.Mutex
	next time.Time
}

// wait waits for the next turn.
func (p *pace) wait(ctx context.Context) error {
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	turn := p.next
	p.next = turn.Add(gap)
	p.mu.Unlock()
	return pause.Wait(ctx, turn.Sub(now))
}

// pauses are the registries that were not available. The zero value is ready for use.
type pauses struct {
	mu  sync.Mutex
	all map[string]registryPause
}

// registryPause is the time in which a registry is not asked.
type registryPause struct {
	since, until time.Time
	last         time.Duration // without what the registry has asked for
	busy         bool          // the registry has asked for it
}

// note notes that a registry has answered, or with err why it was not available.
func (p *pauses) note(registry string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.all, registry)
		return
	}
	now := registryPause{since: time.Now(), last: pause.Next(p.all[registry].last, firstPause, longestPause)}
	length := now.last
	var busy *resolve.Busy
	if now.busy = errors.As(err, &busy); now.busy {
		length = max(length, min(busy.RetryAfter, longestRetryAfter))
	}
	now.until = now.since.Add(length)
	if p.all == nil {
		p.all = make(map[string]registryPause)
	}
	p.all[registry] = now
}

// until returns when a registry is asked again. waits is false if it can be asked now.
func (p *pauses) until(registry string) (_ time.Time, waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.all[registry]
	return known.until, time.Now().Before(known.until)
}

// untilFor is until for an operator who asked at begun: a registry that did not answer before is asked, but one that is busy is not.
func (p *pauses) untilFor(registry string, begun time.Time) (_ time.Time, waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.all[registry]
	return known.until, time.Now().Before(known.until) && (known.busy || !known.since.Before(begun))
}

// soonest returns when the first of the registries of references can be asked again, but not later than next.
func (p *pauses) soonest(refs []string, next time.Time) time.Time {
	for _, ref := range refs {
		if at, _ := p.until(registryOf(ref)); at.Before(next) {
			next = at
		}
	}
	return next
}
