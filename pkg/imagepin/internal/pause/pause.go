// Package pause has the pauses between tries of something that fails.
package pause

import (
	"context"
	"time"
)

// Next returns the pause after one more failure: first, and then twice the last one, up to most.
func Next(last, first, most time.Duration) time.Duration { return min(max(2*last, first), most) }

// Wait waits for d, or until ctx ends, and returns its error then.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
