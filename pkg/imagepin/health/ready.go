package health

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

// Ready reports whether everything that an entry needs is on the node: its content ([blobs.Image.Needed]), which it
// reads and hashes, and its snapshot with all directories.
func (c *Checker) Ready(ctx context.Context, e imagepin.Entry) (bool, error) {
	needed, indexGone, err := blobs.ImageOf(e).Needed(blobs.LookIn(ctx, c.config.Content))
	if err != nil || indexGone {
		return false, err
	}
	for _, n := range needed {
		info, err := c.config.Content.Info(ctx, n.Digest)
		if err == nil {
			err = blobs.Verify(ctx, c.config.Content, n.Digest, info.Size, nil)
		}
		if damage := new(blobs.Damage); errdefs.IsNotFound(err) || errors.As(err, &damage) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	if here, err := c.config.Images.HasSnapshot(ctx, e.Target.Snapshotter, e.ChainID); err != nil || !here || e.ChainID == "" {
		return here, err
	}
	var missing string
	err = lease.With(ctx, c.config.Leases, lease.Use, func(ctx context.Context) (err error) {
		missing, err = c.MissingDirectory(ctx, snapshotOf(e))
		return err
	})
	return missing == "" && err == nil, err
}
