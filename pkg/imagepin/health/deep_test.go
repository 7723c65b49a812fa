package health

import (
	"context"
	"errors"
	"testing"
	"time"
)

// The pace lets through what has been paid for, and no more.
func TestPace(t *testing.T) {
	p := pace{rate: 1 << 20}
	start := time.Now()
	if err := p.wait(t.Context(), 4<<20); err != nil {
		t.Fatal(err)
	}
	ahead := p.free.Sub(start)
	if ahead < 4*time.Second {
		t.Errorf("4 MiB at 1 MiB a second are paid for after %s", ahead)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
