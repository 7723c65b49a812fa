package health

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/layerfiles"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Ready reports whether everything that an entry needs is on the node, see [Checker.Verify].
func (c *Checker) Ready(ctx context.Context, e imagepin.Entry) (bool, error) {
	_, lost, err := c.Verify(ctx, e)
	return err == nil && !lost, err
}

// Verify is [Checker.Lost] for one entry, and also reads and hashes its content ([blobs.Image.Needed]), checks that all
// directories of its snapshot exist, and compares all files in them. Files that cannot be compared are no loss.
func (c *Checker) Verify(ctx context.Context, e imagepin.Entry) (_ Loss, lost bool, _ error) {
	needed, indexGone, err := blobs.ImageOf(e).Needed(blobs.LookIn(ctx, c.config.Content))
	if err != nil {
		return Loss{}, false, err
	}
	if indexGone {
		return Loss{Entry: e, Reason: "an index between " + e.RecordTarget.Digest.String() + " and manifest " + e.Manifest.String() + " is gone"}, true, nil
	}
	for _, n := range needed {
		info, err := c.config.Content.Info(ctx, n.Digest)
		if err == nil {
			err = blobs.Verify(ctx, c.config.Content, n.Digest, info.Size, nil)
		}
		switch damage := new(blobs.Damage); {
		case errors.As(err, &damage):
			return Loss{Entry: e, Reason: "the file of " + n.Kind + " " + n.Digest.String() + " " + damage.Problem}, true, nil
		case errdefs.IsNotFound(err):
			return Loss{Entry: e, Reason: n.Kind + " " + n.Digest.String() + " is gone"}, true, nil
		case err != nil:
			return Loss{}, false, err
		}
	}
	here, err := c.config.Images.HasSnapshot(ctx, e.Target.Snapshotter, e.ChainID)
	if err != nil || here && e.ChainID == "" {
		return Loss{Entry: e}, false, err
	}
	if !here {
		return withoutSnapshot(e), true, nil
	}
	var missing string
	err = lease.With(ctx, c.config.Leases, lease.Use, func(ctx context.Context) (err error) {
		missing, err = c.missingDirectory(ctx, store.SnapshotOf(e))
		return err
	})
	if err != nil {
		return Loss{}, false, err
	}
	if missing != "" {
		return Loss{Entry: e, Reason: missing, MissingDirectory: true}, true, nil
	}
	found, err := c.CompareFiles(ctx, e, true)
	if errdefs.IsNotFound(err) { // the repair of another key of the snapshot has removed it meanwhile
		return withoutSnapshot(e), true, nil
	}
	if err != nil || found.State != layerfiles.Damaged {
		return Loss{Entry: e}, false, err
	}
	return Loss{Entry: e, Reason: found.Why, DamagedFiles: true}, true, nil
}

// withoutSnapshot returns the loss of an entry whose snapshot is gone.
func withoutSnapshot(e imagepin.Entry) Loss {
	return Loss{Entry: e, Reason: "snapshot " + e.ChainID.String() + " is gone", Unpackable: true}
}
