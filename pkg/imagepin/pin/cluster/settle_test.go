package cluster

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// TestSettler tries again after longer and longer pauses if a pin waits, and at each tick if the API server does not answer.
func TestSettler(t *testing.T) {
	waits := &WaitError{Err: errdefs.ErrPermissionDenied}
	for name, test := range map[string]struct {
		err      error
		attempts []time.Duration // of the first ten minutes
		lines    int
	}{
		"refused":   {waits, []time.Duration{0, 10 * time.Second, 30 * time.Second, 70 * time.Second, 150 * time.Second, 310 * time.Second}, 1},
		"available": {nil, every(settlePeriod, 10*time.Minute), 0},
		"away":      {errdefs.ErrUnavailable, every(settlePeriod, 10*time.Minute), 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			logger, hook := logtest.NewNullLogger()
			ctx := log.WithLogger(t.Context(), logrus.NewEntry(logger))
			start := time.Now()
			var attempts []time.Duration
			s := settler{
				pins: func() []pin.Pin { return []pin.Pin{{Provisional: &pin.Claimant{Name: "web-1", UID: "77"}}} },
				settle: func(context.Context, pin.Pin) error {
					attempts = append(attempts, time.Since(start))
					return test.err
				},
			}
			for range 60 {
				s.once(ctx)
				time.Sleep(settlePeriod)
			}
			if !slices.Equal(attempts, test.attempts) {
				t.Errorf("%s: tried after %v, want %v", name, attempts, test.attempts)
			}
			if n := len(hook.AllEntries()); n != test.lines {
				t.Errorf("%s: got %d log lines, want %d", name, n, test.lines)
			}
		})
	}
}

// every returns the multiples of a period that are less than end.
func every(period, end time.Duration) []time.Duration {
	var all []time.Duration
	for d := time.Duration(0); d < end; d += period {
		all = append(all, d)
	}
	return all
}

// TestSettlerOfAnotherPod tries at once if a pin is for another pod.
func TestSettlerOfAnotherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claimant, attempts := pin.Claimant{Name: "web-1", UID: "77"}, 0
		s := settler{
			pins: func() []pin.Pin { return []pin.Pin{{Provisional: &claimant}} },
			settle: func(context.Context, pin.Pin) error {
				attempts++
				return &WaitError{Err: errdefs.ErrPermissionDenied}
			},
		}
		for range 60 {
			s.once(t.Context())
			time.Sleep(settlePeriod)
		}
		before := attempts
		claimant = pin.Claimant{Name: "web-2", UID: "78"}
		s.once(t.Context())
		if attempts != before+1 || len(s.waiting) != 1 {
			t.Errorf("got %d attempts and %d waiting pins, want %d and 1", attempts, len(s.waiting), before+1)
		}
	})
}
