package pause

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestNext(t *testing.T) {
	var got []time.Duration
	for last := time.Duration(0); len(got) < 5; got = append(got, last) {
		last = Next(last, 2*time.Second, 9*time.Second)
	}
	if want := []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 9 * time.Second, 9 * time.Second}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := Wait(t.Context(), time.Minute); err != nil || time.Since(start) != time.Minute {
			t.Errorf("got %v after %s, want no error after 1m", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Wait(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute+time.Second {
			t.Errorf("got %v after %s, want context.DeadlineExceeded after 1m1s", err, time.Since(start))
		}
	})
}
