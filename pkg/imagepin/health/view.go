package health

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// viewPrefix is the prefix of the names of the views that are used to check the directories of snapshots.
const viewPrefix = "imagepin-check-"

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
