package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
)

// Boots knows whether an earlier boot has left something. [durable.Boots] implements it.
type Boots interface {
	// Settled reports whether Settle was called in the running boot.
	Settled() (bool, error)
	Settle() error
}

// leftovers are what calls have left that a kill or a power cut has ended. After a power cut, layers that a pull had unpacked
// may have lost their files. Nothing of it may be used: a pull finds a snapshot by the digest of its layers.
type leftovers struct {
	config *Config
	leases []leases.Lease // those whose deletion is not known to have succeeded
	begun  bool
	gone   chan struct{} // closed when nothing is left
	retry  time.Duration // how long to wait before garbage is collected again after a failure
}

func newLeftovers(c *Config) *leftovers {
	return &leftovers{config: c, gone: make(chan struct{}), retry: time.Second}
}

// remove deletes the leases of the calls that were running when the process ended, once. Blobs that pulls have fetched stay under
// leases that expire. first reports whether this was the call that did so. If this is not the first start of a boot, nothing else is
// left.
func (l *leftovers) remove(ctx context.Context) (first bool, _ error) {
	if l.begun { // later there are leases of calls that are still running
		return false, nil
	}
	if err := lease.NewResumes(l.config.Leases, l.config.Content).KeepLeftovers(ctx, l.config.Records); err != nil {
		return false, err
	}
	held, err := lease.LeftoverResources(ctx, l.config.Leases)
	if err != nil {
		return false, err
	}
	if l.config.Checker != nil {
		if err := l.config.Checker.RemoveViews(ctx, held); err != nil {
			return false, err
		}
	}
	late, err := lease.DeleteLeftovers(ctx, l.config.Leases)
	if err != nil {
		return false, err
	}
	l.leases, l.begun = late, true
	if l.settled(ctx) {
		close(l.gone)
	}
	return true, nil
}

// collect removes the rest of what is left, until it succeeds or ctx ends. release releases the snapshots that no key needs. Calls are
// answered meanwhile, and only pulls wait, see [Reconciler.AwaitClean]: a collection takes as long as the slowest snapshotter.
func (l *leftovers) collect(ctx context.Context, release func(context.Context) error) {
	for !l.isGone() {
		err := l.collectOnce(ctx, release)
		if err == nil || ctx.Err() != nil {
			return
		}
		log.G(ctx).WithError(err).Warn("cannot collect what pulls had unpacked before the boot, pulls wait until that succeeds")
		if pause.Wait(ctx, l.retry) != nil {
			return
		}
	}
}

// expire deletes the leases of blobs that failed pulls have fetched when they expire, until ctx ends.
func (l *leftovers) expire(ctx context.Context) {
	if err := lease.NewResumes(l.config.Leases, l.config.Content).Expire(ctx); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Warn("cannot delete the leases of failed pulls, containerd collects what they hold when they expire")
	}
}

// settled reports whether nothing of an earlier boot is left.
func (l *leftovers) settled(ctx context.Context) bool {
	if l.config.Boots == nil {
		return true
	}
	settled, err := l.config.Boots.Settled()
	if err != nil {
		log.G(ctx).WithError(err).Warn("cannot find whether this is the first start since the boot")
	}
	return settled
}

func (l *leftovers) collectOnce(ctx context.Context, release func(context.Context) error) error {
	for len(l.leases) > 0 {
		if err := lease.DeleteLeftover(ctx, l.config.Leases, l.leases[0]); err != nil {
			return err
		}
		l.leases = l.leases[1:]
	}
	if err := release(ctx); err != nil {
		return err
	}
	if err := l.config.Collect(ctx); err != nil {
		return err
	}
	failpoint.Reach("start.collected")
	if err := l.config.Boots.Settle(); err != nil {
		return fmt.Errorf("%w, the next start collects garbage again", err)
	}
	close(l.gone)
	return nil
}

func (l *leftovers) isGone() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// AwaitClean waits until nothing is left of what pulls had unpacked when the power was cut, or until ctx ends.
func (r *Reconciler) AwaitClean(ctx context.Context) error {
	select {
	case <-r.leftovers.gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
