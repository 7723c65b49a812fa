package store

import (
	"context"
	"time"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Seen is an entry of the index. It is outdated as soon as the key is recorded again, also for the same image.
type Seen struct{ entry *held }

// See returns the entry of a key for [Store.RemoveSeen].
func (s *reader) See(k imagepin.Key) (e imagepin.Entry, seen Seen, ok bool) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	now := s.index.get(k)
	if now == nil {
		return imagepin.Entry{}, Seen{}, false
	}
	return now.entry(), Seen{now}, true
}

// RemoveSeen is [Store.Remove] for an entry that is not outdated. removed is false if it is.
func (s *Store) RemoveSeen(ctx context.Context, seen Seen) (removed bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	current := s.index.unchanged(group{seen.entry})
	if len(current) == 0 {
		return false, nil
	}
	if _, err = s.removeRecords(ctx, current); err == nil {
		err = s.releaseRemoved(ctx, current)
	}
	return true, err
}

// Remove removes keys, and the records that no other key needs. Call [Store.Collect] then: it frees the content and
// snapshots that nothing else references. Remove ignores unknown keys.
func (s *Store) Remove(ctx context.Context, keys ...imagepin.Key) (Change, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	var removed []imagepin.Entry
	for _, k := range keys {
		if e, ok := s.Get(k); ok {
			removed = append(removed, e)
		}
	}
	if len(removed) == 0 {
		return Change{}, nil
	}
	ch, err := s.removeRecords(ctx, removed)
	if err != nil {
		return ch, err
	}
	var kept []imagepin.Entry
	for _, e := range removed {
		if len(s.ByID(e.ImageID)) > 0 {
			kept = append(kept, e)
			continue
		}
		// The collection removes the configuration, and so its reference to the snapshot, unless another tool keeps it.
		s.unreleased[Unpacked{e.ImageID, e.Target.Snapshotter}] = struct{}{}
	}
	return ch, s.releaseRemoved(ctx, kept)
}

// removeRecords removes entries of the index, and the records that no other key needs.
func (s *writer) removeRecords(ctx context.Context, removed []imagepin.Entry) (Change, error) {
	ch, err := s.apply(ctx, removed, nil)
	if err != nil {
		return ch, err
	}
	s.noteRemoved(removed)
	failpoint.Reach("remove.recorded")
	return ch, nil
}

// releaseRemoved releases the snapshots of removed entries. The keys are gone, so it does so even if the caller does not
// wait any longer.
func (s *writer) releaseRemoved(ctx context.Context, removed []imagepin.Entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), collectTimeout)
	defer cancel()
	return s.releaseSnapshots(ctx, removed)
}

// detach removes keys from a record that was deleted or now targets another image. If the record of a key's tag still
// targets the key's image, the key moves to that record, which also keeps the image. All other keys are removed.
func (s *writer) detach(ctx context.Context, entries []imagepin.Entry) error {
	var moved []imagepin.Entry
	for _, e := range entries {
		if e.Ref == e.Record || !s.native(e) {
			continue
		}
		img, err := s.record(ctx, e.Ref)
		if err != nil {
			return err
		}
		if img != nil && img.Target.Digest == e.RecordTarget.Digest {
			e.Record = e.Ref
			moved = append(moved, e)
		}
	}
	return s.forget(ctx, entries, moved)
}

// forget removes keys whose record another tool has deleted or changed, and adds those that have moved to another record.
// It keeps the records of image IDs, as containerd's CRI does: an image without any other record is listed by its ID until
// kubelet or [Store.RemoveUntagged] removes it.
func (s *writer) forget(ctx context.Context, entries, moved []imagepin.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	if _, err := s.commit(ctx, nil, entries, moved, plan{keepIDs: true, mayCreate: s.creatorFor(moved)}); err != nil {
		return err
	}
	if len(moved) > 0 {
		failpoint.Reach("sync.unseated")
	} else {
		failpoint.Reach("sync.forgotten")
	}
	released, err := s.noteForgotten(ctx, entries)
	if err != nil {
		return err
	}
	return s.releaseSnapshots(ctx, released)
}

// noteForgotten notes the images without keys that have a record of their ID, and returns the entries of all others. An
// image that containerd's CRI lists keeps its snapshots.
func (s *writer) noteForgotten(ctx context.Context, entries []imagepin.Entry) (others []imagepin.Entry, _ error) {
	for _, e := range entries {
		if len(s.ByID(e.ImageID)) > 0 {
			others = append(others, e)
			continue
		}
		img, err := s.record(ctx, e.ImageID.String())
		switch {
		case err != nil:
			return nil, err
		case img == nil || !Managed(*img):
			others = append(others, e)
		default:
			u := Untagged{Entry: imagepin.Entry{ImageID: e.ImageID, Manifest: e.Manifest, ChainID: e.ChainID, Size: e.Size, User: e.User}}
			u.forgotten = time.Now()
			s.NoteUntagged(u)
			delete(s.removed, e.ImageID) // the record is no longer a late one
		}
	}
	return others, nil
}
