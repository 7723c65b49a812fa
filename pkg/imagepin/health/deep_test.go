package health

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRate checks that a read is delayed until the bytes before it are within the rate, and ends with its context.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &deepRun{limiter: limiterOf(1 << 20)}
		start := time.Now()
		for range 5 {
			if err := r.wait(t.Context(), burst); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.wait(t.Context(), 4*burst); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start).Round(time.Millisecond); took != 8*time.Second {
			t.Errorf("9 MiB at 1 MiB per second took %s, want 8s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.wait(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		start = time.Now()
		timed, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.wait(timed, 4*burst); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("got %v after %s, want context.DeadlineExceeded after 1s", err, time.Since(start))
		}
		unlimited := &deepRun{limiter: limiterOf(0)}
		if err := unlimited.wait(t.Context(), 1<<30); err != nil || time.Since(start) != time.Second {
			t.Errorf("without a limit: got %v after %s", err, time.Since(start)-time.Second)
		}
	})
}
