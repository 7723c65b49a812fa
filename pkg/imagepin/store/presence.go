package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// HideSnapshot takes the keys that need a snapshot out of the index, if it is gone, so that they are not reported as
// present. It returns them, to be repaired. Their labels stay.
func (s *Store) HideSnapshot(ctx context.Context, snapshotter, name string) ([]imagepin.Entry, error) {
	id := snapshot{snapshotter, digest.Digest(name)}
	before := s.index.needing(id)
	if len(before) == 0 {
		return nil, nil // most are those of containers
	}
	// Without the lock: a snapshotter that hangs must not keep others waiting.
	here, err := s.HasSnapshot(ctx, snapshotter, id.chainID)
	if err != nil || here {
		return nil, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries := s.index.unchanged(before)
	s.index.replace(entries, nil)
	return entries, nil
}

// HideBlob takes the keys that need a blob out of the index, if it is gone, and returns them. Layers are not needed once
// they are unpacked.
func (s *Store) HideBlob(ctx context.Context, d digest.Digest) ([]imagepin.Entry, error) {
	if s.isReplaced(d) {
		return nil, nil
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var entries []imagepin.Entry
	s.index.mu.RLock()
	for _, e := range s.index.byKey {
		if e.Manifest == d || e.ImageID == d || e.RecordTarget.Digest == d {
			entries = append(entries, *e)
		}
	}
	s.index.mu.RUnlock()
	if len(entries) == 0 {
		return nil, nil
	}
	if here, err := s.hasBlob(ctx, d); err != nil || here {
		return nil, err
	}
	s.index.replace(entries, nil)
	return entries, nil
}

// HasContent reports whether there is all of an entry but its snapshot and layers.
func (s *Store) HasContent(ctx context.Context, e imagepin.Entry) (bool, error) {
	for _, d := range []digest.Digest{e.RecordTarget.Digest, e.Manifest, e.ImageID} {
		if here, err := s.hasBlob(ctx, d); err != nil || !here {
			return false, err
		}
	}
	return true, nil
}

func (s *Store) hasBlob(ctx context.Context, d digest.Digest) (bool, error) {
	return blobs.Here(ctx, s.Content, d)
}

// HasSnapshot tells whether chainID is committed in a snapshotter now. An image
// without layers has no chain ID, and needs no snapshot.
func (s *Store) HasSnapshot(ctx context.Context, snapshotter string, chainID digest.Digest) (bool, error) {
	if chainID == "" {
		return true, nil
	}
	info, err := s.Snapshotter(snapshotter).Stat(ctx, chainID.String())
	switch {
	case errdefs.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("snapshot %s in %s: %w", chainID, snapshotter, err)
	}
	return info.Kind == snapshots.KindCommitted, nil
}

// Restore records a key that has been made ready again, if the record called
// witness still means it: another tool, or a removal, may have been there
// meanwhile. The context carries a lease of the caller, which is to hold what it
// needs. It fails with ErrUnavailable where something of that was removed again.
func (s *Store) PutIf(ctx context.Context, e imagepin.Entry, witness string) (restored bool, _ error) {
	e = *s.withUser(ctx, e)
	if err := s.AddToLease(ctx, e); err != nil {
		_, gone := s.Records.Get(ctx, witness)
		switch {
		case errdefs.IsNotFound(gone):
			return false, nil // nobody wants it any more
		case errdefs.IsNotFound(err):
			return false, fmt.Errorf("%v: %w", err, errdefs.ErrUnavailable) // it can be made again
		}
		return false, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	img, err := s.Records.Get(ctx, witness)
	if errdefs.IsNotFound(err) || err == nil && img.Target.Digest != e.Root.Digest && img.Target.Digest != e.RecordTarget.Digest {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read image record %s: %w", witness, err)
	}
	var replaced []imagepin.Entry
	if now, ok := s.Get(e.Key); ok {
		if now.Root.Digest == e.Root.Digest || witness != e.Ref {
			return true, nil // a pull came first, and knows better
		}
		replaced = append(replaced, now) // the tag's record has moved on
	} else if meant, err := s.tagMeans(ctx, e); err != nil || !meant {
		return false, err
	}
	if err := s.keepSnapshot(ctx, e); err != nil {
		return false, err
	}
	_, err = s.apply(ctx, replaced, []imagepin.Entry{e}, "")
	return err == nil, err
}

// tagMeans tells whether the record of an entry's tag, where it has one, is
// there and as the keys have it.
func (s *Store) tagMeans(ctx context.Context, e imagepin.Entry) (bool, error) {
	if !s.tagged(e) {
		return true, nil
	}
	tag, err := s.Records.Get(ctx, e.Ref)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read image record %s: %w", e.Ref, err)
	}
	return tag.Target.Digest == e.RecordTarget.Digest || s.Accounted(tag), nil
}

// Adopted tells whether the keys of a reference are of an image that came by
// another tool, and a target that could have it has none.
func (s *Store) Adopted(ref string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	g := s.index.byRef[ref]
	return len(g) > 0 && len(g) < len(s.Runtimes().Targets()) &&
		!slices.ContainsFunc(g, func(e *imagepin.Entry) bool { return e.Source == imagepin.SourcePull })
}

// Present tells whether there is all that an entry needs, now.
func (s *Store) Present(ctx context.Context, e imagepin.Entry) (bool, error) {
	if whole, err := s.HasContent(ctx, e); err != nil || !whole {
		return false, err
	}
	return s.HasSnapshot(ctx, e.Target.Snapshotter, e.ChainID)
}
