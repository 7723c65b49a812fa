package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// EvictSnapshot removes the keys that need a snapshot from the index if the snapshot is gone, so that they are not
// reported as present. It returns them for repair. Their labels stay, and are marked as damaged if they have a mark of durability.
func (s *Store) EvictSnapshot(ctx context.Context, snapshotter, name string) ([]imagepin.Entry, error) {
	id := snapshot{snapshotter, digest.Digest(name)}
	before := s.index.needing(id)
	if len(before) == 0 {
		return nil, nil // most snapshots belong to containers
	}
	// Check without the lock, so that a snapshotter that hangs does not block other writers.
	here, err := s.HasSnapshot(ctx, snapshotter, id.chainID)
	if err != nil || here {
		return nil, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	reason := "snapshot " + name + " is gone"
	gone := s.evict(s.index.unchanged(before), reason)
	return gone, s.endDurable(ctx, gone, reason)
}

// EvictUnusable removes the keys that need one of some unusable snapshots from the index. Call it before the snapshots are removed. It
// returns the keys for repair, also with an error. Their labels stay, and are marked as damaged if they have a mark of durability.
func (s *Store) EvictUnusable(ctx context.Context, snapshotter string, chainIDs []digest.Digest, reason string) ([]imagepin.Entry, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var gone []imagepin.Entry
	for _, c := range chainIDs {
		gone = append(gone, s.evict(s.index.unchanged(s.index.needing(snapshot{snapshotter, c})), reason)...)
	}
	return gone, s.endDurable(ctx, gone, reason)
}

// EvictBlob looks at the content of the keys that have a blob as their index, manifest or configuration. It removes
// those that lack content from the index, and returns them.
func (s *Store) EvictBlob(ctx context.Context, d digest.Digest) ([]imagepin.Entry, error) {
	if s.isBeingReplaced(d) {
		return nil, nil
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var entries []imagepin.Entry
	s.index.mu.RLock()
	for e := range s.index.each() {
		if e.Manifest == d || e.ImageID == d || e.targetDigest() == d {
			entries = append(entries, e.entry())
		}
	}
	s.index.mu.RUnlock()
	if len(entries) == 0 {
		return nil, nil
	}
	lost, err := withoutContent(entries, d, s.lookUnreplaced(ctx))
	if err != nil {
		return nil, err
	}
	return s.evict(lost, "content "+d.String()+" is gone"), nil
}

// withoutContent returns those of the entries that need a blob that lack it or other content.
func withoutContent(entries []imagepin.Entry, d digest.Digest, look blobs.Look) ([]imagepin.Entry, error) {
	if found, err := look(d); err != nil || !found.Intact {
		return entries, err
	}
	var lost []imagepin.Entry
	for _, e := range entries {
		here, err := hasContent(e, look)
		if err != nil {
			return nil, err
		}
		if !here {
			lost = append(lost, e)
		}
	}
	return lost, nil
}

// lookUnreplaced looks in the content store. A blob that is being replaced counts as intact.
func (s *presence) lookUnreplaced(ctx context.Context) blobs.Look {
	look := blobs.LookIn(ctx, s.config.Content)
	return func(d digest.Digest) (blobs.Found, error) {
		found, err := look(d)
		found.Intact = found.Intact || s.isBeingReplaced(d)
		return found, err
	}
}

// HasContent reports whether all content that an entry needs exists, see [blobs.Image.Needed]. It does not check the
// snapshot.
func (s *presence) HasContent(ctx context.Context, e imagepin.Entry) (bool, error) {
	return hasContent(e, blobs.LookIn(ctx, s.config.Content))
}

func hasContent(e imagepin.Entry, look blobs.Look) (bool, error) {
	needed, indexGone, err := blobs.ImageOf(e).Needed(look)
	if err != nil || indexGone {
		return false, err
	}
	for _, n := range needed {
		if found, err := look(n.Digest); err != nil || !found.Intact {
			return false, err
		}
	}
	return true, nil
}

// HasSnapshot reports whether chainID is committed in a snapshotter. It reports true for an empty chainID, because an
// image without layers needs no snapshot.
func (s *presence) HasSnapshot(ctx context.Context, snapshotter string, chainID digest.Digest) (bool, error) {
	if chainID == "" {
		return true, nil
	}
	sn := s.config.Snapshotter(snapshotter)
	if sn == nil {
		return false, nil // it is not loaded
	}
	info, err := sn.Stat(ctx, chainID.String())
	switch {
	case errdefs.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("snapshot %s in %s: %w", chainID, snapshotter, err)
	}
	return info.Kind == snapshots.KindCommitted, nil
}

// PutIf records a key that was made ready again, if the record called witness still targets its image. Another tool or
// a removal may have changed that record. PutIf adds the content and snapshot to the caller's lease in ctx. restored
// reports whether the key is ready. PutIf returns ErrUnavailable if content or the snapshot was removed again.
func (s *Store) PutIf(ctx context.Context, e imagepin.Entry, witness string) (restored bool, _ error) {
	e = s.withUser(ctx, e)
	e.DamagedAt = time.Time{}
	if _, used := s.config.Runtimes().ForTarget(e.Target); used {
		e.UnusedAt = time.Time{}
	}
	if err := s.AddToLease(ctx, e); err != nil {
		_, gone := s.config.Records.Get(ctx, witness)
		switch {
		case errdefs.IsNotFound(gone):
			return false, nil // the record is gone
		case errdefs.IsNotFound(err):
			return false, fmt.Errorf("%v: %w", err, errdefs.ErrUnavailable) // the repair can be retried
		}
		return false, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	img, err := s.record(ctx, witness)
	if err != nil || img == nil || img.Target.Digest != e.Root.Digest && img.Target.Digest != e.RecordTarget.Digest {
		return false, err
	}
	var replaced []imagepin.Entry
	if now, ok := s.Get(e.Key); ok {
		if now.Root.Digest == e.Root.Digest || witness != e.Ref || !s.mayReplace(now, *img) {
			return true, nil // a pull was first, and is newer
		}
		replaced = append(replaced, now) // another tool has moved the tag
	} else if meant, err := s.tagMatches(ctx, e); err != nil || !meant {
		return false, err
	}
	made := []imagepin.Entry{e}
	s.inheritSources(made)
	e = made[0]
	if err := s.keepSnapshot(ctx, e); err != nil {
		return false, err
	}
	superseded := s.superseded(made)
	if _, err = s.apply(ctx, append(replaced, superseded...), made); err != nil {
		return false, err
	}
	return true, s.releaseSuperseded(ctx, superseded)
}

// HasKey reports whether the key of an entry is recorded for the entry's image, ready or not.
func (s *presence) HasKey(ctx context.Context, e imagepin.Entry) (bool, error) {
	if now, ok := s.Get(e.Key); ok {
		return now.Root.Digest == e.Root.Digest, nil
	}
	img, err := s.record(ctx, e.Record)
	if err != nil || img == nil {
		return false, err
	}
	return img.Target.Digest == e.RecordTarget.Digest && img.Labels[imagepin.KeyLabelName(e.Key)] != "", nil
}

// tagMatches reports whether the record of an entry's tag exists and agrees with the keys. It reports true for an entry
// without such a record.
func (s *presence) tagMatches(ctx context.Context, e imagepin.Entry) (bool, error) {
	if !s.hasTagRecord(e) {
		return true, nil
	}
	tag, err := s.record(ctx, e.Ref)
	if err != nil || tag == nil {
		return false, err
	}
	return tag.Target.Digest == e.RecordTarget.Digest || s.Accounted(*tag), nil
}

// Adopted reports whether all keys of a reference are for an image that another tool put on the node, and at least one
// target has no key.
func (s *presence) Adopted(ref string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	g := s.index.byRef[ref]
	without := slices.ContainsFunc(s.config.Runtimes().Targets(), func(t runtimeplatform.Target) bool {
		return s.index.get(imagepin.Key{Ref: ref, Target: t}) == nil
	})
	return len(g) > 0 && without &&
		!slices.ContainsFunc(g, func(e *held) bool { return e.Source == imagepin.SourcePull })
}

// NeedsSnapshot reports whether a key that is ready needs a snapshot as its top one.
func (s *presence) NeedsSnapshot(snapshotter string, chainID digest.Digest) bool {
	return len(s.index.needing(snapshot{snapshotter, chainID})) > 0
}

// IsDurable reports whether a key of a reference has a mark of durability.
func (s *presence) IsDurable(ref string) bool {
	return slices.ContainsFunc(s.ByRef(ref), func(e imagepin.Entry) bool { return e.Durable != "" })
}

// Present reports whether all content and the snapshot that an entry needs exist.
func (s *presence) Present(ctx context.Context, e imagepin.Entry) (bool, error) {
	if whole, err := s.HasContent(ctx, e); err != nil || !whole {
		return false, err
	}
	return s.HasSnapshot(ctx, e.Target.Snapshotter, e.ChainID)
}

// readRecord reads an image record. It returns nil if there is none.
func readRecord(ctx context.Context, records images.Store, name string) (*images.Image, error) {
	img, err := records.Get(ctx, name)
	switch {
	case errdefs.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read image record %s: %w", name, err)
	}
	return &img, nil
}

// record is [readRecord] for a record of the node.
func (s *presence) record(ctx context.Context, name string) (*images.Image, error) {
	return readRecord(ctx, s.config.Records, name)
}
