package pull

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

const (
	// leasePurpose is the value of the label on a pull's lease.
	leasePurpose = "pull"
	// leaseLife bounds how long a lease protects what nobody came back for.
	leaseLife = 24 * time.Hour
	// cleanupTimeout bounds what is done after the caller has gone.
	cleanupTimeout = 30 * time.Second
	// collectWait bounds how long a pull that has failed waits for what it has left
	// to be collected.
	collectWait = 2 * time.Second
)

// withLease runs fn under a lease that holds everything fn fetches and unpacks.
// Where fn fails, what it left is collected behind: the caller may hold a lock.
func (p *Puller) withLease(ctx context.Context, fn func(context.Context) error) error {
	err := underLease(ctx, p.Leases, fn)
	if err != nil {
		p.collectBehind()
	}
	return err
}

// collectBehind has what nothing holds any more collected, and does not wait for it.
func (p *Puller) collectBehind() {
	if p.Garbage != nil {
		p.Garbage()
	}
}

// collect is collectBehind, and waits a moment for it: a collection takes as long as
// the slowest snapshotter. The caller holds no lock of its own; CreateContainer and
// RunPodSandbox hold the digest for reading meanwhile, which keeps it from removal.
func (p *Puller) collect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), collectWait)
	defer cancel()
	if err := p.Store.Collect(ctx); err != nil {
		p.collectBehind()
	}
}

// underLease runs fn under a lease, and deletes that.
func underLease(ctx context.Context, manager leases.Manager, fn func(context.Context) error) error {
	l, err := manager.Create(ctx,
		leases.WithRandomID(),
		leases.WithExpiration(leaseLife),
		leases.WithLabel(imagepin.LeaseLabel, leasePurpose))
	if err != nil {
		return fmt.Errorf("lease for what is pulled: %w", err)
	}
	failpoint.Reach("pull.leased")
	err = fn(leases.WithLease(ctx, l.ID))

	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if derr := manager.Delete(cleanup, l); derr != nil && !errdefs.IsNotFound(derr) {
		log.G(ctx).WithError(derr).WithField("lease", l.ID).Warn("a lease stays until it expires")
	}
	failpoint.Reach("pull.released")
	return err
}

// DeleteLeftovers deletes the leases of calls that were killed: of pulls, and
// those that hold an image for the length of a call (purpose "use") or start a
// collection ("collect"). It must run before the first call. What they held is
// collected before it returns, unless that takes too long: a snapshotter that
// hangs must not hold up the start.
func DeleteLeftovers(ctx context.Context, manager leases.Manager) error {
	all, err := manager.List(ctx, fmt.Sprintf("labels.%q~=^(%s|use|collect)$", imagepin.LeaseLabel, leasePurpose))
	if err != nil {
		return fmt.Errorf("list the leases of earlier calls: %w", err)
	}
	for i, l := range all {
		var opts []leases.DeleteOpt
		if i == len(all)-1 {
			opts = append(opts, leases.SynchronousDelete)
		}
		failpoint.Reach("start.leftover")
		bounded, cancel := context.WithTimeout(ctx, cleanupTimeout)
		err := manager.Delete(bounded, l, opts...)
		late := bounded.Err() != nil && ctx.Err() == nil
		cancel()
		if late {
			log.G(ctx).WithError(err).WithField("lease", l.ID).Warn("what a killed call left is collected later")
			continue
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete the lease of an earlier call: %w", err)
		}
		log.G(ctx).WithField("lease", l.ID).Info("deleted what a killed call left")
	}
	return nil
}
