package apply

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin/applied"
)

const (
	// checkPeriod is how often the images of the lock are looked at.
	checkPeriod = time.Minute
	// maxPause is the longest pause after a failure to make an image ready again. The first is checkPeriod, and each is twice
	// as long as the one before it.
	maxPause = 32 * time.Minute
)

// Run keeps the images of the node's lock ready until ctx ends: at the start, where it also completes what a killed apply has
// switched, and then periodically. Before that, it applies the drop directories if their content is new, again after a failure
// that is not in their content. It runs what [Applier.Detach] accepts.
func (a *Applier) Run(ctx context.Context) {
	steps := []*step{
		{run: a.applyNew, message: "the drop directories were not applied, the lock of this node is unchanged"},
		{run: a.complete, message: "an image of the lock is not ready"},
		{run: a.countDrift, message: "the running containers cannot be compared with the lock"},
	}
	tick := time.NewTicker(checkPeriod)
	defer tick.Stop()
	for {
		for _, s := range steps {
			s.try(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case run := <-a.detached:
			if _, err := recovered(func() (struct{}, error) { run(ctx); return struct{}{}, nil }); err != nil {
				log.G(ctx).WithError(err).Error("the lock was not applied")
			}
		case <-tick.C:
		}
	}
}

// step is a part of what Run does periodically.
type step struct {
	run     func(context.Context) (again bool, _ error)
	message string

	done  bool // it does not run again
	pause time.Duration
	next  time.Time
}

// try runs a step, unless it pauses after a failure.
func (s *step) try(ctx context.Context) {
	if s.done || time.Now().Before(s.next) {
		return
	}
	again, err := recovered(func() (bool, error) { return s.run(ctx) })
	s.done = !again
	if err == nil || ctx.Err() != nil {
		s.pause = 0
		return
	}
	s.pause = min(max(2*s.pause, checkPeriod), maxPause)
	s.next = time.Now().Add(s.pause)
	entry := log.G(ctx).WithError(err)
	if again {
		entry = entry.WithField("retry", s.pause)
	}
	entry.Warn(s.message)
}

// applyNew applies the drop directories once. It tries again after a failure that is not in their content, such as a registry
// that cannot be reached.
func (a *Applier) applyNew(ctx context.Context) (again bool, _ error) {
	_, _, err := a.ApplyDropped(ctx, Request{}, false)
	return err != nil && !errdefs.IsInvalidArgument(err), err
}

// Detach runs a function in [Applier.Run], which goes on when the caller has gone. It fails with ApplyInProgress
// (ErrFailedPrecondition) if another lock is being applied.
func (a *Applier) Detach(ctx context.Context, run func(context.Context)) error {
	end, err := a.begin(ctx)
	if err != nil {
		return err
	}
	end()
	select {
	case a.detached <- run:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// complete makes the images of the current lock ready that are not, and records its tags and the lock itself. It writes nothing
// if there is nothing to do, and while a lock is applied. It stops when an apply begins.
func (a *Applier) complete(ctx context.Context) (again bool, _ error) {
	repair, stop := context.WithCancel(ctx)
	defer stop()
	end, busy := a.tryBegin(stop)
	if busy != nil {
		return true, nil // it is what the apply does
	}
	defer end()
	if err := a.config.State.Repair(ctx); err != nil {
		return true, err
	}
	now := a.config.State.Get().Current
	if now == nil {
		return true, nil
	}
	err := a.makeComplete(repair, now)
	if repair.Err() != nil && ctx.Err() == nil {
		return true, nil // for an apply
	}
	return true, err
}

func (a *Applier) makeComplete(ctx context.Context, now *applied.Applied) error {
	r := Request{Lock: now.Lock, Name: now.Name, Handlers: now.Handlers}
	p, err := a.plan(ctx, r)
	if err != nil {
		return err
	}
	for n := range p.jobs {
		p.jobs[n].onNode = now.Bundle
	}
	if len(p.jobs) > 0 {
		if err := a.makeReady(ctx, r, p, func(Progress) {}); err != nil {
			return err
		}
	}
	return a.tag(ctx, now)
}
