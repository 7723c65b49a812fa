package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// lateRecordWindow is how long containerd's CRI may take to write the record of an image ID. The CRI writes it when it
// handles the event of another record, which may be removed by then (see package upstream).
const lateRecordWindow = time.Minute

// Untagged is an image that has a record of its image ID but no key. containerd's CRI lists it without a tag.
type Untagged struct {
	// Entry has ImageID, Manifest, ChainID, Size and User. Its Key is empty.
	imagepin.Entry
	// forgotten is when the image lost its last key because another tool has removed or changed its records. It is zero if
	// that is not known.
	forgotten time.Time
}

// NoteUntagged adds an image that has a record of its ID but no key. It is forgotten when the record is removed, see
// [Store.Sync].
func (s *reader) NoteUntagged(u Untagged) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if u.forgotten.IsZero() {
		u.forgotten = s.index.untagged[u.ImageID].forgotten
	}
	s.index.untagged[u.ImageID] = u
	delete(s.index.unreadable, u.ImageID)
}

// NoteUnreadable adds a record of an image ID that belongs to no key, and whose configuration is gone. containerd's CRI
// does not list such an image, so nothing else removes its record, which keeps the rest of its content.
func (s *reader) NoteUnreadable(id digest.Digest) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	s.index.unreadable[id] = true
}

// Unkeyed returns the image IDs whose records belong to no key, in order.
func (s *reader) Unkeyed() []digest.Digest {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	ids := slices.AppendSeq(slices.Collect(maps.Keys(s.index.untagged)), maps.Keys(s.index.unreadable))
	ids = slices.DeleteFunc(ids, func(id digest.Digest) bool { return len(s.index.byID[id]) > 0 || s.index.hasDamaged(id) })
	slices.Sort(ids)
	return slices.Compact(ids)
}

// stillUnreadable reports whether an image that was unreadable still is. It returns true for other images.
func (s *presence) stillUnreadable(ctx context.Context, id digest.Digest) (bool, error) {
	s.index.mu.RLock()
	was := s.index.unreadable[id]
	s.index.mu.RUnlock()
	if !was {
		return true, nil
	}
	_, err := s.config.Content.Info(ctx, id)
	if errdefs.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// Untagged returns the images that have a record of their ID but no key, in no particular order.
func (s *reader) Untagged() []Untagged {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	var all []Untagged
	for id, u := range s.index.untagged {
		if len(s.index.byID[id]) == 0 && !s.index.hasDamaged(id) {
			all = append(all, u)
		}
	}
	return all
}

// FindUntagged returns the image without a key that has the given ID.
func (s *reader) FindUntagged(name string) (Untagged, bool) {
	id, err := digest.Parse(name)
	if err != nil {
		return Untagged{}, false
	}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	u, ok := s.index.untagged[id]
	return u, ok && len(s.index.byID[id]) == 0 && !s.index.hasDamaged(id)
}

// forgottenAt returns when an image lost its last key, if that is known and it has none.
func (s *reader) forgottenAt(id digest.Digest) time.Time {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.untagged[id].forgotten
}

// Unaccounted lists the records that belong to no key, neither to one in the index nor to a lost one.
func (s *presence) Unaccounted(ctx context.Context) ([]images.Image, error) {
	all, lost, err := s.lost(ctx)
	if err != nil {
		return nil, err
	}
	ofLost := NeededBy(lost)
	return slices.DeleteFunc(all, func(img images.Image) bool { return ofLost(img) || s.Accounted(img) }), nil
}

// Lost lists the keys on records that are not in the index, in no particular order. They are about to be repaired or
// dropped.
func (s *presence) Lost(ctx context.Context) ([]imagepin.Entry, error) {
	_, lost, err := s.lost(ctx)
	return lost, err
}

// lost is Lost, and lists all records.
func (s *presence) lost(ctx context.Context) (all []images.Image, lost []imagepin.Entry, _ error) {
	all, err := s.config.Records.List(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list images: %w", err)
	}
	for _, img := range all {
		lost = append(lost, s.lostOn(img)...)
	}
	return all, lost, nil
}

// forgetUntagged notes that the record of an image ID is gone.
func (s *reader) forgetUntagged(name string) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	delete(s.index.untagged, digest.Digest(name))
	delete(s.index.unreadable, digest.Digest(name))
}

// RemoveUntagged removes the record of an image ID without a key, if it is the only record of its target, no other tool
// has pinned it, and it was not written after before, nor lost its last key then. The next garbage collection frees its content, see [Store.Collect]. The caller has checked that
// nothing uses the image.
func (s *Store) RemoveUntagged(ctx context.Context, id digest.Digest, before time.Time) (removed bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	img, err := s.record(ctx, id.String())
	if err != nil || img == nil || isPinned(img.Labels) {
		return false, err
	}
	if img.UpdatedAt.After(before) || s.forgottenAt(id).After(before) {
		return false, nil
	}
	if still, err := s.stillUnreadable(ctx, id); err != nil || !still {
		return false, err
	}
	return s.removeUnkeyed(ctx, *img)
}

// RemoveRecords removes the named records of an image, and the other records of their targets. It keeps records that
// belong to keys in the index, and ignores names without a record. The next garbage collection frees their content, see
// [Store.Collect].
func (s *Store) RemoveRecords(ctx context.Context, id digest.Digest, names ...string) (removed bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	err = s.config.Records.Atomically(ctx, func(ctx context.Context, records images.Store) error {
		all, err := sameTargets(ctx, records, names)
		if err != nil {
			return err
		}
		for _, img := range all {
			if s.Accounted(img) {
				continue
			}
			failpoint.Reach("store.write")
			if err := records.Delete(ctx, img.Name); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("delete image record %s: %w", img.Name, err)
			}
			removed = true
		}
		failpoint.Reach("store.commit")
		return nil
	})
	if err != nil {
		return false, err
	}
	if removed {
		s.forgetUntagged(id.String())
		s.noteRemoved([]imagepin.Entry{{ImageID: id}})
		log.G(ctx).WithField("image", id).Info("removed the records of an image without a key")
	}
	return removed, nil
}

// sameTargets returns the records that have the same target as any of the named records.
func sameTargets(ctx context.Context, records images.Store, names []string) ([]images.Image, error) {
	var filters []string
	for _, name := range names {
		img, err := readRecord(ctx, records, name)
		if err != nil {
			return nil, err
		}
		if img != nil {
			filters = append(filters, fmt.Sprintf("target.digest==%s", img.Target.Digest))
		}
	}
	if len(filters) == 0 {
		return nil, nil // List without a filter returns all records
	}
	all, err := records.List(ctx, filters...)
	if err != nil {
		return nil, fmt.Errorf("list image records: %w", err)
	}
	return all, nil
}

// HasKeys reports whether any record with the same target as the named record carries keys. It includes keys that are
// not in the index. These are lost, and are repaired or dropped. It fails with ErrNotFound if there is no such record.
func (s *Store) HasKeys(ctx context.Context, name string) (bool, error) {
	all, err := sameTargets(ctx, s.config.Records, []string{name})
	if err != nil {
		return false, err
	}
	if len(all) == 0 {
		return false, fmt.Errorf("image record %s: %w", name, errdefs.ErrNotFound)
	}
	for _, img := range all {
		if slices.ContainsFunc(decode(ctx, img), func(e imagepin.Entry) bool {
			return e.Root.Digest == img.Target.Digest || e.Manifest == img.Target.Digest
		}) {
			return true, nil
		}
	}
	return false, nil
}

// removeUnkeyed removes the record of an image ID, unless the image has a key or another record. The caller holds
// the lock.
func (s *writer) removeUnkeyed(ctx context.Context, img images.Image) (removed bool, _ error) {
	if len(s.ByID(digest.Digest(img.Name))) > 0 || img.Labels[upstream.ImageLabel] != upstream.Managed {
		return false, nil
	}
	same, err := s.config.Records.List(ctx, fmt.Sprintf("target.digest==%s", img.Target.Digest))
	if err != nil {
		return false, fmt.Errorf("list the records of %s: %w", img.Target.Digest, err)
	}
	if len(same) != 1 {
		return false, nil
	}
	failpoint.Reach("untagged.remove")
	if err := s.config.Records.Delete(ctx, img.Name); err != nil && !errdefs.IsNotFound(err) {
		return false, fmt.Errorf("delete image record %s: %w", img.Name, err)
	}
	failpoint.Reach("untagged.removed")
	s.forgetUntagged(img.Name)
	log.G(ctx).WithField("image", img.Name).Info("removed the record of an image ID without a key")
	return true, nil
}

// Managed reports whether containerd's CRI has labeled a record as its own, and therefore lists the image.
func Managed(img images.Image) bool { return img.Labels[upstream.ImageLabel] == upstream.Managed }

// CreateIDRecord creates the record of an image ID if it does not exist, and the record img still exists with the same
// target. containerd's CRI creates the record of a reference again if the reference is removed while the CRI handles the
// event of its creation. The record of the ID may have been removed since, and then no list contains the image.
func (s *Store) CreateIDRecord(ctx context.Context, img images.Image, id digest.Digest) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := s.record(ctx, img.Name)
	if err != nil || now == nil || now.Target.Digest != img.Target.Digest || !Managed(*now) {
		return err
	}
	_, err = s.config.Records.Create(ctx, images.Image{
		Name: id.String(), Target: now.Target, Labels: map[string]string{upstream.ImageLabel: upstream.Managed},
	})
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("create image record %s: %w", id, err)
	}
	return nil
}

// noteRemoved notes the images whose last keys were removed, because containerd's CRI may still write the record of
// their ID. The caller holds the mutex.
func (s *writer) noteRemoved(entries []imagepin.Entry) {
	now := time.Now()
	for id, at := range s.removed {
		if now.Sub(at) > lateRecordWindow {
			delete(s.removed, id)
		}
	}
	for _, e := range entries {
		if len(s.ByID(e.ImageID)) == 0 {
			s.removed[e.ImageID] = now
		}
	}
}

// removeLateRecord removes a record that containerd's CRI wrote for an image after its removal. The caller holds the
// lock.
func (s *writer) removeLateRecord(ctx context.Context, img images.Image) (removed bool, _ error) {
	at, ok := s.removed[digest.Digest(img.Name)]
	if !ok || time.Since(at) > lateRecordWindow {
		return false, nil
	}
	return s.removeUnkeyed(ctx, img)
}
