package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Load builds the index from the labels on the image records. It takes one
// listing of the images, one walk of the content and one walk of each
// snapshotter. A key whose manifest, configuration or snapshot is gone stays
// out of the index.
//
// It writes nothing, but for the labels that a crash between two writes has
// left where they do not belong any more: they would come back to life once
// the key is removed from where it does.
//
// It returns the records that no key in the index speaks of: what another tool
// put on the node.
func (s *Store) Load(ctx context.Context) ([]images.Image, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	have, err := s.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.Records.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	names := make(map[string]struct{}, len(all))
	for _, img := range all {
		names[img.Name] = struct{}{}
	}
	x := newIndex()
	var stale []imagepin.Entry
	for _, img := range all {
		entries := decode(ctx, img)
		for _, e := range entries {
			if _, ok := s.Runtimes.ForTarget(e.Target); !ok {
				continue // no handler asks for this target now
			}
			if why := have.Missing(e); why != "" {
				log.G(ctx).WithField("key", e.Key.String()).Warnf("a key is not ready any more: %s", why)
				continue
			}
			if _, ok := names[e.Ref]; !ok && s.tagged(e) {
				stale = append(stale, e) // as Sync has it: the tag is gone
				continue
			}
			if o := x.byKey[e.Key]; o != nil {
				// Two records claim it: the later one is right.
				if !e.ReadyAt.After(o.ReadyAt) {
					stale = append(stale, e)
					continue
				}
				stale = append(stale, *o)
			}
			x.remove(e.Key)
			x.add(&e)
		}
		x.noteProofs(img)
	}
	s.index.mu.Lock()
	s.index.byKey, s.index.byRef, s.index.byID = x.byKey, x.byRef, x.byID
	s.index.byRecord, s.index.ids, s.index.proofs = x.byRecord, x.ids, x.proofs
	s.index.mu.Unlock()
	for _, e := range stale {
		label := imagepin.KeyLabelName(e.Key)
		_, err := s.Records.Update(ctx, images.Image{
			Name: e.Record, Labels: map[string]string{label: deletedLabel},
		}, "labels."+label)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("take key %s off image record %s: %w", e.Key, e.Record, err)
		}
	}
	return slices.DeleteFunc(all, s.Explained), nil
}

// tagged tells whether an entry comes with a record of its tag, besides the one
// that carries its label.
func (s *Store) tagged(e imagepin.Entry) bool {
	return s.native(e) && e.Record != e.Ref && !strings.Contains(e.Ref, "@")
}

// Explained tells whether the keys in the index account for a record as it is:
// it carries keys, or it is the ID or the tag of an image that has some. What
// is not explained is for adoption to look at.
func (s *Store) Explained(img images.Image) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	if len(s.index.byRecord[img.Name]) > 0 {
		return s.index.byRecord[img.Name][0].RecordTarget.Digest == img.Target.Digest
	}
	if id, err := digest.Parse(img.Name); err == nil {
		return len(s.index.byID[id]) > 0
	}
	return slices.ContainsFunc(s.index.byRef[img.Name], func(e *imagepin.Entry) bool {
		return e.RecordTarget.Digest == img.Target.Digest
	})
}

// Inventory is what content and which snapshots there are at one moment.
type Inventory struct {
	blobs     map[digest.Digest]struct{}
	snapshots map[string]map[string]struct{} // snapshotter -> committed names
}

// Inventory walks the content and the snapshotters of all handlers. A
// snapshotter that does not answer has no snapshots.
func (s *Store) Inventory(ctx context.Context) (*Inventory, error) {
	inv := &Inventory{
		blobs:     make(map[digest.Digest]struct{}),
		snapshots: make(map[string]map[string]struct{}),
	}
	if err := s.Content.Walk(ctx, func(i content.Info) error {
		inv.blobs[i.Digest] = struct{}{}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("walk content: %w", err)
	}
	for _, name := range s.Runtimes.Snapshotters() {
		committed := make(map[string]struct{})
		err := s.Snapshotter(name).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			if i.Kind == snapshots.KindCommitted {
				committed[i.Name] = struct{}{}
			}
			return nil
		})
		if err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("snapshotter", name).Error("its images are not available: cannot list snapshots")
		}
		inv.snapshots[name] = committed
	}
	return inv, nil
}

// HasBlob tells whether the content store has a blob.
func (inv *Inventory) HasBlob(d digest.Digest) bool {
	_, ok := inv.blobs[d]
	return ok
}

// HasSnapshot tells whether chainID is committed in a snapshotter. An image
// without layers has no chain ID, and needs no snapshot.
func (inv *Inventory) HasSnapshot(snapshotter string, chainID digest.Digest) bool {
	if chainID == "" {
		return true
	}
	_, ok := inv.snapshots[snapshotter][chainID.String()]
	return ok
}

// Missing says what an entry lacks to be ready; nothing where it is.
func (inv *Inventory) Missing(e imagepin.Entry) string {
	switch {
	case !inv.HasBlob(e.Manifest):
		return "manifest " + e.Manifest.String() + " is gone"
	case !inv.HasBlob(e.ImageID):
		return "configuration " + e.ImageID.String() + " is gone"
	case !inv.HasSnapshot(e.Target.Snapshotter, e.ChainID):
		return "snapshot " + e.ChainID.String() + " is gone"
	}
	return ""
}
