// Package lease runs calls under leases of their own, and deletes the leases that killed calls have left.
package lease

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

// Purpose is the value of the label on a lease.
type Purpose string

// The purposes of leases that are for the length of a call.
const (
	// Pull holds what a pull fetches and unpacks.
	Pull Purpose = "pull"
	// Use holds an image that a container or a sandbox is about to be made of, or that is checked.
	Use Purpose = "use"
	// Collect starts a garbage collection.
	Collect Purpose = "collect"
)

// OfCall reports whether a lease is for the length of a call.
func OfCall(l leases.Lease) bool {
	switch Purpose(l.Labels[imagepin.LeaseLabel]) {
	case Pull, Use, Collect:
		return true
	}
	return false
}

const (
	// life bounds how long a lease holds what nobody came back for.
	life = 24 * time.Hour
	// cleanupTimeout bounds what is done after the caller has gone.
	cleanupTimeout = 30 * time.Second
)

// With runs fn under a lease, which ctx carries, and deletes the lease.
func With(ctx context.Context, manager leases.Manager, p Purpose, fn func(context.Context) error) error {
	l, err := manager.Create(ctx, leases.WithRandomID(), leases.WithExpiration(life), leases.WithLabel(imagepin.LeaseLabel, string(p)))
	if err != nil {
		return fmt.Errorf("create a lease: %w", err)
	}
	failpoint.Reach("lease.created")
	err = fn(leases.WithLease(ctx, l.ID))

	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if derr := manager.Delete(cleanup, l); derr != nil && !errdefs.IsNotFound(derr) {
		log.G(ctx).WithError(derr).WithField("lease", l.ID).Warn("cannot delete a lease, it stays until it expires")
	}
	failpoint.Reach("lease.deleted")
	return err
}

// DeleteLeftovers deletes the leases of calls that were killed: of pulls, and
// those that hold an image for the length of a call or start a
// collection. It must run before the first call. What they held is
// collected before it returns, unless that takes too long: a snapshotter that
// hangs must not hold up the start.
func DeleteLeftovers(ctx context.Context, manager leases.Manager) error {
	all, err := manager.List(ctx, fmt.Sprintf("labels.%q~=^(%s|%s|%s)$", imagepin.LeaseLabel, Pull, Use, Collect))
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
