package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

const (
	// settlePeriod is how often provisional pins are claimed. The client of the API waits longer after failures.
	settlePeriod = 10 * time.Second
	// maxPause is the longest pause between two attempts to claim a pin that waits. The first is settlePeriod: the API server
	// also refuses requests when it has just started.
	maxPause = 5 * time.Minute
)

// settler claims provisional pins periodically. It is not safe for concurrent use.
type settler struct {
	pins   func() []pin.Pin
	settle func(ctx context.Context, provisional pin.Pin) error // as [Authority.Settle]

	waiting map[string]waiting // by pin and pod
	failed  bool               // the last attempt, which was logged
}

// waiting is a pin that waits for another pod of its revision, or for a person.
type waiting struct {
	pause time.Duration
	until time.Time // when it is tried again
}

// run claims provisional pins until ctx ends.
func (s *settler) run(ctx context.Context) {
	for pause.Wait(ctx, settlePeriod) == nil {
		s.once(ctx)
	}
}

// once tries to claim each pin whose pause is over. It logs the first of consecutive failures, and that a pin begins to
// wait.
func (s *settler) once(ctx context.Context) {
	still := make(map[string]waiting)
	failed := false
	for _, p := range s.pins() {
		id := p.ID.String() + " for " + p.Provisional.String()
		w, waited := s.waiting[id]
		if waited {
			still[id] = w
		}
		if time.Now().Before(w.until) {
			continue
		}
		err := s.settle(ctx, p)
		if err == nil {
			continue
		}
		entry := log.G(ctx).WithError(err).WithFields(log.Fields{"ref": p.Ref, "scope": string(p.Scope), "pod": p.Provisional.Name})
		if waits := new(WaitError); !errors.As(err, &waits) {
			if !s.failed && !failed && ctx.Err() == nil {
				entry.Warn("a provisional pin cannot be claimed in the cluster yet, trying again")
			}
			failed = true
			continue
		}
		w.pause = pause.Next(w.pause, settlePeriod, maxPause)
		w.until = time.Now().Add(w.pause)
		if still[id] = w; !waited {
			entry.Warn("a provisional pin is claimed when another pod of its revision starts, or when the cause is removed")
		}
	}
	s.waiting, s.failed = still, failed
}
