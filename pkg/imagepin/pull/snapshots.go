package pull

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// repairSnapshots repairs the snapshots of an image whose files are known to be damaged. repaired reports whether the image has to be
// unpacked again. If a repair needs a layer that is missing or damaged, repairSnapshots fetches it from src.
func (m *Maker) repairSnapshots(ctx context.Context, src *source, e imagepin.Entry) (repaired bool, _ error) {
	if m.config.Snapshots == nil || m.config.RepairSnapshots == nil {
		return false, nil
	}
	why, err := m.config.Snapshots.SnapshotDamage(ctx, e)
	if err != nil || why == "" {
		return false, err
	}
	err = m.config.RepairSnapshots(ctx, e)
	if mayNeedLayers(err) && ctx.Err() == nil {
		log.G(ctx).WithError(err).WithField("key", e.Key.String()).Info("fetching the layers of a damaged snapshot")
		if ferr := m.fetchLayers(ctx, src, e); ferr != nil {
			return false, fmt.Errorf("%s; %w; and its layers cannot be fetched: %w", why, err, ferr)
		}
		err = m.config.RepairSnapshots(ctx, e)
	}
	return err == nil, err
}

// mayNeedLayers reports whether a repair of snapshots can succeed when all layers are on the node.
func mayNeedLayers(err error) bool {
	var typed *imagepin.Error
	return err != nil && (!errors.As(err, &typed) || typed.Reason == imagepin.ContentCorrupt)
}

// fetchLayers fetches the layers of an image that are not in the content store, or whose file is damaged.
func (m *Maker) fetchLayers(ctx context.Context, src *source, e imagepin.Entry) error {
	layers, err := blobs.LayersOf(ctx, m.config.Content, e)
	if err != nil {
		return err
	}
	from, err := src.Fetcher(ctx, src.name)
	if err != nil {
		return err
	}
	for _, layer := range layers.Blobs {
		if err := m.unpacker.fetcher.fetchMissing(ctx, src, from, layer); err != nil {
			return err
		}
	}
	return nil
}

// checkSnapshot returns ContentDamaged (ErrDataLoss) if the files of an image's snapshots are known to be damaged. An unpack uses the
// snapshots that are on the node.
func (m *Maker) checkSnapshot(ctx context.Context, e imagepin.Entry) error {
	if m.config.Snapshots == nil {
		return nil
	}
	why, err := m.config.Snapshots.SnapshotDamage(ctx, e)
	if err != nil || why == "" {
		return err
	}
	return &imagepin.Error{
		Reason: imagepin.ContentDamaged, Ref: e.Ref, Target: e.Target.String(), Message: why, Class: errdefs.ErrDataLoss,
		Hint: "The node's disk lost or changed files of the image. Run imagepin check --deep --repair.",
	}
}
