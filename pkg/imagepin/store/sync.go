package store

import (
	"context"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Sync updates the keys after another tool may have changed the record called name. It removes keys whose record or tag
// was deleted or now targets another image, and writes missing labels again. It returns the record for adoption if it
// has no key. It does not return a record that lost keys need, because these are about to be repaired or dropped.
func (s *Store) Sync(ctx context.Context, name string) (*images.Image, error) {
	img, removed, err := s.sync(ctx, name)
	if removed {
		s.config.Released() // the caller handles events, which must not wait for a collection
	}
	return img, err
}

// sync is Sync for one record. removed reports whether it has removed the record.
func (s *writer) sync(ctx context.Context, name string) (_ *images.Image, removed bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	carried := s.ByRecord(name)
	img, err := s.record(ctx, name)
	if err != nil {
		return nil, false, err
	}
	if img == nil {
		s.index.noteLabels(images.Image{Name: name})
		s.forgetUntagged(name)
		s.index.noteRecord(name, "")
		if err := s.syncDamaged(ctx, name, nil); err != nil {
			return nil, false, err
		}
		for _, e := range s.ByRef(name) {
			if s.native(e) && e.Record != name {
				carried = append(carried, e)
			}
		}
		if err := s.detach(ctx, carried); err != nil {
			return nil, false, err
		}
		// CRI creates containers by image ID, so the record of one that has keys is created again.
		if entries := s.ByID(digest.Digest(name)); len(entries) > 0 {
			return nil, false, s.repairRecord(ctx, name, entries)
		}
		return nil, false, nil
	}
	s.index.noteLabels(*img)
	s.index.noteRecord(name, img.Target.Digest)
	if err := s.syncDamaged(ctx, name, img); err != nil {
		return nil, false, err
	}
	if err := s.removeLabels(ctx, s.copiedTo(*img, len(carried))); err != nil {
		return nil, false, err
	}
	moved := slices.DeleteFunc(slices.Clone(carried), func(e imagepin.Entry) bool {
		return e.RecordTarget.Digest == img.Target.Digest
	})
	if err := s.detach(ctx, moved); err != nil {
		return nil, false, err
	}
	if stay := s.ByRecord(name); len(stay) > 0 {
		return nil, false, s.repairRecord(ctx, name, stay)
	}
	if s.Accounted(*img) {
		return nil, false, nil
	}
	if lost, err := s.neededByLost(ctx, *img); err != nil || lost {
		return nil, false, err
	}
	if removed, err := s.removeLateRecord(ctx, *img); err != nil || removed {
		return nil, removed, err
	}
	return img, false, nil
}

// copiedTo returns the keys whose labels a record has, but another record carries. Another tool has created it as a copy of that
// record with its labels, as nerdctl tag does. carried is how many keys the record carries.
func (s *writer) copiedTo(img images.Image, carried int) (copied []imagepin.Entry) {
	labels := 0
	for name := range img.Labels {
		if imagepin.IsKeyLabel(name) {
			labels++
		}
	}
	if labels <= carried {
		return nil // nothing is decoded at the events of its own writes
	}
	for e, err := range keyLabels(img) {
		if now, ready := s.Get(e.Key); err == nil && ready && now.Record != img.Name {
			copied = append(copied, e)
		}
	}
	return copied
}

// repairRecord writes what is missing on the record called name, which carries entries, and creates missing records of
// their image IDs. It does not repair the records of their tags, because these have events of their own.
func (s *writer) repairRecord(ctx context.Context, name string, entries []imagepin.Entry) error {
	names := []string{name}
	for _, e := range entries {
		if id := e.ImageID.String(); !slices.Contains(names, id) {
			names = append(names, id)
		}
	}
	_, err := s.writePlan(ctx, plan{view: s.view(nil, entries, nil), names: names, mayCreate: isID})
	return err
}

// RepairRecords writes the records of an entry again if they differ.
func (s *Store) RepairRecords(ctx context.Context, e imagepin.Entry) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	now, ok := s.Get(e.Key)
	if !ok {
		return nil
	}
	_, err = s.apply(ctx, nil, []imagepin.Entry{now})
	return err
}
