package lookup

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Run looks up the pins that are in use and those of the node's lock, once in each interval, until ctx ends. The first round begins at
// a random time in the first interval, so that nodes that start together do not ask together. Later ones begin 90% to 110% of the
// interval after the one before. A registry that is not available is asked again after a pause. With an interval of 0, Run does nothing.
func (l *Looker) Run(ctx context.Context, interval time.Duration) {
	if interval <= 0 {
		return
	}
	var left []string // references whose registry was not available
	used := make(map[pin.ID]bool)
	wanted := func(p pin.Pin) bool { return used[p.ID] }
	for {
		next := l.nextRound(interval)
		if pause.Wait(ctx, time.Until(l.hosts.soonest(left, next))) != nil {
			return
		}
		if time.Now().Before(next) {
			left = l.pass(ctx, left, wanted)
			continue
		}
		l.schedule(interval)
		pins, err := l.used(ctx)
		if err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("cannot look up pins at their registries")
			continue
		}
		clear(used)
		for _, p := range pins {
			used[p.ID] = true
		}
		l.forget()
		left = l.pass(ctx, references(pins), wanted)
		if ctx.Err() != nil {
			return
		}
		l.end(time.Now())
	}
}

// used returns the pins that are looked up in the background.
func (l *Looker) used(ctx context.Context) ([]pin.Pin, error) {
	all := l.config.Pins.List()
	if len(all) == 0 {
		return nil, nil
	}
	used, err := l.config.InUse(ctx)
	return slices.DeleteFunc(all, func(p pin.Pin) bool { return p.Scope != policy.LockScope && !used[p.ID] }), err
}

// pass looks up references, and returns those whose registry was not available.
func (l *Looker) pass(ctx context.Context, refs []string, wanted func(pin.Pin) bool) (left []string) {
	for _, ref := range refs {
		if _, waits := l.hosts.until(registryOf(ref)); waits || l.look(ctx, ref, wanted) != nil {
			left = append(left, ref)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return left
}

// nextRound returns when the next round begins. For a new interval it chooses a time.
func (l *Looker) nextRound(interval time.Duration) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.interval != interval {
		l.interval, l.next = interval, time.Now().Add(rand.N(interval))
	}
	return l.next
}

// schedule chooses when the round after the one that begins now begins.
func (l *Looker) schedule(interval time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = time.Now().Add(interval*9/10 + rand.N(interval/5))
}

func (l *Looker) end(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = at
}
