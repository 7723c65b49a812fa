package apply

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

const (
	// checkPeriod is how often the images of the lock are looked at.
	checkPeriod = time.Minute
	// maxPause is the longest pause after a failure to make an image ready again. The first is checkPeriod.
	maxPause = 32 * time.Minute
)

// Run keeps the images of the node's lock ready until ctx ends: at the start, where it also completes what a killed apply has
// switched, and then periodically. Before that, it applies the drop directories if their content is new, again after a failure
// that is not in their content, and again if a reload names other directories. It runs what [Applier.Detach] accepts.
func (a *Applier) Run(ctx context.Context) {
	fresh := newDirectories{applier: a}
	steps := []*step{
		{run: fresh.apply, message: "the drop directories were not applied, the lock of this node is unchanged"},
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
				a.note("detached apply", err)
			}
		case <-tick.C:
		}
	}
}

// step is a part of what Run does periodically.
type step struct {
	run     func(context.Context) error
	message string

	pause time.Duration
	next  time.Time
}

// try runs a step, unless it pauses after a failure.
func (s *step) try(ctx context.Context) {
	if time.Now().Before(s.next) {
		return
	}
	_, err := recovered(func() (struct{}, error) { return struct{}{}, s.run(ctx) })
	if err == nil || ctx.Err() != nil {
		s.pause = 0
		return
	}
	s.pause = pause.Next(s.pause, checkPeriod, maxPause)
	s.next = time.Now().Add(s.pause)
	log.G(ctx).WithError(err).WithField("retry", s.pause).Warn(s.message)
}

// newDirectories applies the content of the drop directories once after a start, and once after a reload that changes which they
// are.
type newDirectories struct {
	applier *Applier
	done    map[[2]string]bool // for the directory of locks and that of bundles
}

// apply applies the directories if that is not done. It fails for what a later attempt can change, such as a registry that cannot
// be reached.
func (n *newDirectories) apply(ctx context.Context) error {
	s := n.applier.config.Settings()
	directories := [2]string{s.LocksDirectory, s.BundlesDirectory}
	if n.done[directories] {
		return nil
	}
	_, err := n.applier.ApplyDropped(ctx, Request{}, false)
	if err != nil && !isOfContent(err) && !isCanceled(err) {
		return err
	}
	n.done = map[[2]string]bool{directories: true}
	return nil // an error in their content, or that a command has canceled it, is in the log and in the status
}

// isOfContent reports whether an error is in the content of locks and bundles, so that another attempt would read them again for
// the same error.
func isOfContent(err error) bool {
	var known *imagepin.Error
	if errors.As(err, &known) && (known.Reason == imagepin.NotInBundle || known.Reason == imagepin.NoMatchingPlatform) {
		return true
	}
	return errdefs.IsInvalidArgument(err)
}

// complete makes the images of the current lock ready that are not, and records its tags and the lock itself. It writes nothing
// if there is nothing to do, and while a lock is applied. An apply that begins meanwhile cancels it.
func (a *Applier) complete(ctx context.Context) error {
	mine, running := a.turns.take(true)
	if running != nil {
		return nil // it is what another apply does
	}
	defer a.turns.end(mine)
	repairing, release := mine.within(ctx)
	defer release()
	err := a.repair(repairing)
	if repairing.Err() != nil {
		return nil // for an apply
	}
	return err
}

func (a *Applier) repair(ctx context.Context) error {
	if err := a.config.State.Repair(ctx); err != nil {
		return err
	}
	state := a.config.State.Get()
	if err := a.endImported(ctx, state); err != nil {
		return err
	}
	if state.Current == nil {
		return nil
	}
	return a.makeComplete(ctx, state.Current)
}

// endImported makes the keys pulled that an earlier version recorded as imported although a registry has served the content: those
// of tags whose images were copied to another repository.
func (a *Applier) endImported(ctx context.Context, state applied.State) error {
	for _, of := range []*applied.Applied{state.Current, state.Previous} {
		if of == nil {
			continue
		}
		for _, i := range of.Lock.Images {
			tag, ok := i.Tag()
			if !ok || tag.Name() == i.Ref.Name() || !a.isPulled(i.Ref) {
				continue
			}
			if err := a.config.Images.EndImported(ctx, tag, i.Ref.Digest()); err != nil {
				return err
			}
		}
	}
	return nil
}

// isPulled reports whether a registry has served an image.
func (a *Applier) isPulled(ref reference.Canonical) bool {
	return slices.ContainsFunc(a.config.Images.ByRoot(ref.Digest()), func(e imagepin.Entry) bool {
		return e.Source != imagepin.SourceImported && imagepin.InRepository(e.Ref, ref.Name())
	})
}

func (a *Applier) makeComplete(ctx context.Context, now *applied.Applied) error {
	r := Request{Lock: now.Lock, Name: now.Name, Handlers: now.Handlers, stored: now}
	p, err := a.plan(ctx, r)
	if err != nil {
		return err
	}
	p.jobs = slices.DeleteFunc(p.jobs, func(j job) bool { return a.isUnpublished(ctx, p, j) })
	if len(p.jobs) > 0 {
		if err := a.makeReady(ctx, r, p, func(Progress) {}); err != nil {
			return err
		}
	}
	return a.tag(ctx, now)
}

// isUnpublished reports whether the image of a job is not published for its target, according to the image's content on the
// node. A repair does not try such a job: it would fail each time.
func (a *Applier) isUnpublished(ctx context.Context, p *plan, j job) bool {
	if j.offered {
		return false
	}
	_, err := pull.ChooseLocal(ctx, a.config.Content, p.rootOf(j), j.runtime)
	var known *imagepin.Error
	return errors.As(err, &known) && known.Reason == imagepin.NoMatchingPlatform
}
