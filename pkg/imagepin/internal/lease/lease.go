// Package lease runs calls under leases of their own, and deletes the leases that killed calls have left behind.
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

// The purposes of leases that exist only during a call.
const (
	// Pull holds what a pull fetches and unpacks.
	Pull Purpose = "pull"
	// Use holds an image that a container or a sandbox is about to use, or that is being checked.
	Use Purpose = "use"
	// Collect starts a garbage collection.
	Collect Purpose = "collect"
)

// Retain holds content that pins retain, until they change.
const Retain Purpose = "retain"

// RetainRootLabel is the label with the root digest of a lease with the purpose [Retain].
const RetainRootLabel = imagepin.LabelPrefix + "retain.root"

// Retained returns the leases with the purpose [Retain].
func Retained(ctx context.Context, manager leases.Manager) ([]leases.Lease, error) {
	all, err := manager.List(ctx, fmt.Sprintf("labels.%q==%s", imagepin.LeaseLabel, Retain))
	if err != nil {
		return nil, fmt.Errorf("list retain leases: %w", err)
	}
	return all, nil
}

// Resources returns what a lease holds: nothing if it was deleted concurrently.
func Resources(ctx context.Context, manager leases.Manager, l leases.Lease) ([]leases.Resource, error) {
	held, err := manager.ListResources(ctx, l)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("list resources of lease %s: %w", l.ID, err)
	}
	return held, nil
}

// ofCall reports whether a lease exists only during a call.
func ofCall(l leases.Lease) bool {
	switch Purpose(l.Labels[imagepin.LeaseLabel]) {
	case Pull, Use, Collect:
		return true
	}
	return false
}

// cleanupTimeout bounds cleanup after the caller has gone.
const cleanupTimeout = 30 * time.Second

// With runs fn under a new lease, which is in its context, and then deletes the lease. The lease does not expire: leases
// expire at an absolute time, so the content of a pull that takes long, or during which the clock is set, would be
// collected. [DeleteLeftovers] deletes those of killed calls.
func With(ctx context.Context, manager leases.Manager, p Purpose, fn func(context.Context) error) error {
	return withLabels(ctx, manager, map[string]string{imagepin.LeaseLabel: string(p)}, fn)
}

func withLabels(ctx context.Context, manager leases.Manager, labels map[string]string, fn func(context.Context) error) error {
	l, err := manager.Create(ctx, leases.WithRandomID(), leases.WithLabels(labels))
	if err != nil {
		return fmt.Errorf("create a lease: %w", err)
	}
	failpoint.Reach("lease.created")
	err = fn(leases.WithLease(ctx, l.ID))

	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if derr := manager.Delete(cleanup, l); derr != nil && !errdefs.IsNotFound(derr) {
		log.G(ctx).WithError(derr).WithField("lease", l.ID).Warn("cannot delete a lease, it stays until the next start")
	}
	failpoint.Reach("lease.deleted")
	return err
}

// leftovers lists the leases with the purposes Pull, Use and Collect.
func leftovers(ctx context.Context, manager leases.Manager) ([]leases.Lease, error) {
	all, err := manager.List(ctx, fmt.Sprintf("labels.%q~=^(%s|%s|%s)$", imagepin.LeaseLabel, Pull, Use, Collect))
	if err != nil {
		return nil, fmt.Errorf("list the leases of earlier calls: %w", err)
	}
	return all, nil
}

// LeftoverResources returns what the leases of killed calls hold. It must run before the first call.
func LeftoverResources(ctx context.Context, manager leases.Manager) (held []leases.Resource, _ error) {
	all, err := leftovers(ctx, manager)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		of, err := manager.ListResources(ctx, l)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("list what the lease %s of an earlier call holds: %w", l.ID, err)
		}
		held = append(held, of...)
	}
	return held, nil
}

// DeleteLeftovers deletes the leases of killed calls: leases with the purposes Pull, Use and Collect. It must run
// before the first call. It returns after garbage collection of what they held, unless that takes too long: a
// snapshotter that hangs must not block the start. late are the leases whose deletion took too long.
func DeleteLeftovers(ctx context.Context, manager leases.Manager) (late []leases.Lease, _ error) {
	all, err := leftovers(ctx, manager)
	if err != nil {
		return nil, err
	}
	for i, l := range all {
		var opts []leases.DeleteOpt
		if i == len(all)-1 {
			opts = append(opts, leases.SynchronousDelete)
		}
		failpoint.Reach("start.leftover")
		bounded, cancel := context.WithTimeout(ctx, cleanupTimeout)
		err := deleteLeftover(bounded, manager, l, opts...)
		isLate := bounded.Err() != nil && ctx.Err() == nil
		cancel()
		if isLate {
			log.G(ctx).WithError(err).WithField("lease", l.ID).Warn("cannot delete the lease of a killed call in time, its content is collected later")
			late = append(late, l)
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return late, nil
}

// DeleteLeftover deletes a lease that DeleteLeftovers could not delete in time.
func DeleteLeftover(ctx context.Context, manager leases.Manager, l leases.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	return deleteLeftover(ctx, manager, l)
}

func deleteLeftover(ctx context.Context, manager leases.Manager, l leases.Lease, opts ...leases.DeleteOpt) error {
	if err := manager.Delete(ctx, l, opts...); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete the lease of an earlier call: %w", err)
	}
	log.G(ctx).WithField("lease", l.ID).Info("deleted the lease of a killed call")
	return nil
}
