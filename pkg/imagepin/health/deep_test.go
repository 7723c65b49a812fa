package health

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestThrottle checks that a read is delayed until the bytes before it are within the rate.
func TestThrottle(t *testing.T) {
	p := throttle{rate: 1 << 20}
	start := time.Now()
	if err := p.wait(t.Context(), 4<<20); err != nil {
		t.Fatal(err)
	}
	ahead := p.next.Sub(start)
	if ahead < 4*time.Second {
		t.Errorf("4 MiB at 1 MiB per second delay the next read by %s, want 4s", ahead)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
