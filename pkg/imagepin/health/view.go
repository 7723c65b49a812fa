package health

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// viewPrefix is the prefix of the names of the views that are used to check the directories of snapshots.
const viewPrefix = "imagepin-check-"

// RemoveViews removes the views of checks and syncs that were killed, which are a part of what their leases hold. The end of such a lease also
// removes them, but containerd keeps their records in their parents then (see package upstream): no call removes the parents any more.
func (c *Checker) RemoveViews(ctx context.Context, held []leases.Resource) error {
	for _, r := range held {
		name, ok := strings.CutPrefix(r.Type, upstream.SnapshotType)
		if !ok || !isView(r.ID) {
			continue
		}
		snapshotter := c.config.Snapshotter(name)
		if snapshotter == nil {
			continue
		}
		if err := snapshotter.Remove(ctx, r.ID); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove the view %s of a check in %s: %w", r.ID, name, err)
		}
	}
	return nil
}

// withView calls fn with the mounts of a snapshot, which stays while fn runs. If there is no view, it returns an error and does not
// call fn. The context must have a lease, or withView returns ErrFailedPrecondition.
func (c *Checker) withView(ctx context.Context, sn store.Snapshot, fn func([]mount.Mount) error) error {
	id, ok := leases.FromContext(ctx)
	if !ok {
		return fmt.Errorf("check snapshot %s: the context has no lease: %w", sn.ChainID, errdefs.ErrFailedPrecondition)
	}
	snapshotter := c.config.Snapshotter(sn.Snapshotter)
	key := viewPrefix + id + "-" + sn.ChainID.Encoded()
	mounts, err := snapshotter.View(ctx, key, sn.ChainID.String())
	failpoint.Reach("check.viewed")
	defer func() { _ = snapshotter.Remove(context.WithoutCancel(ctx), key) }() // if this fails, the end of the lease removes the view
	if err != nil {
		return err
	}
	return fn(mounts)
}
