package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	claim "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
	client "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
)

// tally counts what the agents do. It is safe for concurrent use.
type tally struct {
	mu       sync.Mutex
	outcomes map[pin.Outcome]int
	events   int   // that were sent
	lost     error // the first error of an event
}

var _ claim.Observer = (*tally)(nil)

// Claimed implements [claim.Observer].
func (t *tally) Claimed(o pin.Outcome, _ time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outcomes[o]++
}

// Lost implements [claim.Observer]. The agents have no provisional pins.
func (t *tally) Lost() {}

func (t *tally) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outcomes, t.events, t.lost = map[pin.Outcome]int{}, 0, nil
}

// won returns how many agents have created an ImagePin.
func (t *tally) won() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outcomes[pin.Won]
}

// awaitEvents waits until the agents have sent their Events: one for each claim that was won or lost.
func (t *tally) awaitEvents(ctx context.Context) (int, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		t.mu.Lock()
		sent, want, lost := t.events, t.outcomes[pin.Won]+t.outcomes[pin.Lost], t.lost
		t.mu.Unlock()
		if sent >= want {
			return sent, lost
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return sent, fmt.Errorf("%d of %d Events were sent: %w", sent, want, context.Cause(ctx))
		}
	}
}

// counted counts the Events that are sent.
type counted struct {
	claim.EventAPI
	t *tally
}

// Report implements [claim.EventAPI].
func (c counted) Report(ctx context.Context, e client.Event) error {
	err := c.EventAPI.Report(ctx, e)
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.t.events++
	if c.t.lost == nil && err != nil && ctx.Err() == nil {
		c.t.lost = fmt.Errorf("an Event: %w", err)
	}
	return err
}
