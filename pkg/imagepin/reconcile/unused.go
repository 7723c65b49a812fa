package reconcile

import (
	"context"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// markUnused records and logs which keys have no runtime handler. The log names each target once, because a target that no
// handler has any more can be a mistake in the configuration.
func markUnused(ctx context.Context, s *store.Store) {
	unused, err := s.MarkUnused(ctx)
	if err != nil {
		if ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("cannot record which keys no runtime handler has a target for, trying again at the next start")
		}
		return
	}
	keys := make(map[string]int)
	for _, e := range unused {
		keys[e.Target.String()]++
	}
	for _, target := range slices.Sorted(maps.Keys(keys)) {
		log.G(ctx).WithField("target", target).WithField("keys", keys[target]).Warnf("no runtime handler has this target: its images are "+
			"unused, and kept for %s, after which kubelet can collect them. To list them, run: imagepin images -o wide. To remove one, "+
			"run: imagepin rm IMAGE-ID", store.UnusedFor)
	}
}

// moves returns the keys without a runtime handler as losses of the same keys for the default target, if their images can
// be unpacked there. [store.Store.PutIf] then drops the unused keys.
func (r *Reconciler) moves(ctx context.Context, unused []imagepin.Entry, have *health.Inventory) (losses []health.Loss) {
	for _, e := range unused {
		moved, ok := r.repairs.forDefaultTarget(e)
		if !ok || !r.hasTopLayer(ctx, e, have) {
			continue
		}
		moved.Moved = true
		losses = append(losses, moved)
	}
	return losses
}

// hasTopLayer reports whether an image may be unpacked for the default target without a registry: its top layer is on
// the node, or unpacked there. An image whose layers are discarded is made ready when it is used first. To try it at each
// start would take several writes to the disk for each image.
func (r *Reconciler) hasTopLayer(ctx context.Context, e imagepin.Entry, have *health.Inventory) bool {
	if have.HasSnapshot(r.config.Runtimes().Default().Target.Snapshotter, e.ChainID) {
		return true
	}
	m, err := blobs.Manifest(ctx, r.config.Content, e.Manifest)
	return err == nil && len(m.Layers) > 0 && have.HasBlob(m.Layers[len(m.Layers)-1].Digest)
}

// keep adds a key whose target no runtime handler has to the index again, if nothing else of it is lost: it was not
// possible to look before.
func (p *repairs) keep(ctx context.Context, e imagepin.Entry) (kept bool, _ error) {
	here, err := p.config.Store.HasSnapshot(ctx, e.Target.Snapshotter, e.ChainID)
	if errdefs.IsInvalidArgument(err) || err == nil && !here {
		return false, nil // containerd has not loaded the snapshotter, or the snapshot is gone
	}
	if err != nil {
		return false, err
	}
	err = p.config.Maker.WithLease(ctx, []imagepin.Entry{e}, func(ctx context.Context) (err error) {
		kept, err = p.config.Store.PutIf(ctx, e, e.Record)
		return err
	})
	return kept, err
}
