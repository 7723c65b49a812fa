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
)

// withLease runs fn under a lease that holds everything fn fetches and
// unpacks. Where fn fails, what it left is collected before withLease returns.
func withLease(ctx context.Context, manager leases.Manager, fn func(context.Context) error) error {
	return underLease(ctx, manager, fn, leases.SynchronousDelete)
}

// withLeaseBehind is withLease for work that nobody waits for. Its context ends
// with the process: then what it left is not waited for, because containerd's
// garbage collection may have ended before.
func withLeaseBehind(ctx context.Context, manager leases.Manager, fn func(context.Context) error) error {
	return underLease(ctx, manager, fn, func(_ context.Context, o *leases.DeleteOptions) error {
		o.Synchronous = ctx.Err() == nil
		return nil
	})
}

// underLease runs fn under a lease. onError says how that is deleted where fn
// fails.
func underLease(ctx context.Context, manager leases.Manager, fn func(context.Context) error, onError leases.DeleteOpt) error {
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
	var opts []leases.DeleteOpt
	if err != nil && !triedAgain(err) {
		opts = append(opts, onError)
	}
	if derr := manager.Delete(cleanup, l, opts...); derr != nil && !errdefs.IsNotFound(derr) {
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
