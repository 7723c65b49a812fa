package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Damaged is a key that is recorded but not ready: a part of its image is gone, or differs from what was recorded. It is
// not in the index, so no call uses its image.
//
// [Store.Load], [Store.EvictSnapshot], [Store.EvictBlob] and [Store.EvictSeen] make a key damaged. It ends when the key is
// recorded as ready ([Store.Put], [Store.PutIf]), dropped ([Store.Drop]), or when another tool removes its record.
type Damaged struct {
	imagepin.Entry
	// Reason describes what is wrong with the image. It may be empty.
	Reason string
	// Waiting is true if nothing is known to be wrong: calls wait for the comparison of its files, see [Store.NoteWaiting].
	Waiting bool
}

// NoteDamaged notes why a key is not ready. It does nothing for a key in the index. It writes nothing, so a start has to
// find the damage again, see [Store.MarkDamaged].
func (s *reader) NoteDamaged(e imagepin.Entry, reason string) {
	s.index.noteDamaged(Damaged{Entry: e, Reason: reason})
}

// NoteWaiting is NoteDamaged for a key of which nothing is known to be wrong.
func (s *reader) NoteWaiting(e imagepin.Entry, reason string) {
	s.index.noteDamaged(Damaged{Entry: e, Reason: reason, Waiting: true})
}

// Damaged returns the damaged keys, in order.
func (s *reader) Damaged() []Damaged {
	return s.damagedIf(func(Damaged) bool { return true })
}

// GetDamaged returns a damaged key.
func (s *reader) GetDamaged(k imagepin.Key) (Damaged, bool) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	d, ok := s.index.damaged[k]
	return d, ok
}

// minShortID is the length of the shortest beginning of an image ID that finds damaged keys: that which tables print.
const minShortID = 12

// FindDamaged returns the damaged keys of a normalized reference, or of an image ID or its beginning, in order.
func (s *reader) FindDamaged(name string) []Damaged {
	short := ""
	if digits := strings.TrimPrefix(name, digest.Canonical.String()+":"); len(digits) >= minShortID {
		short = digits
	}
	return s.damagedIf(func(d Damaged) bool {
		return d.Ref == name || short != "" && strings.HasPrefix(d.ImageID.Encoded(), short)
	})
}

// DropDamaged drops damaged keys, and returns them. It ignores other keys. Call [Store.Collect] then.
func (s *Store) DropDamaged(ctx context.Context, keys ...imagepin.Key) (dropped []imagepin.Entry, _ error) {
	for _, k := range keys {
		d, ok := s.GetDamaged(k)
		if !ok {
			continue
		}
		if err := s.drop(ctx, d.Entry); err != nil {
			return dropped, err
		}
		dropped = append(dropped, d.Entry)
	}
	return dropped, nil
}

func (s *reader) damagedIf(wanted func(Damaged) bool) (found []Damaged) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	for _, d := range s.index.damaged {
		if wanted(d) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b Damaged) int { return Compare(a.Entry, b.Entry) })
	return found
}

func (x *index) noteDamaged(d Damaged) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.get(d.Key) == nil {
		x.damaged[d.Key] = d
	}
}

// forgetDamaged notes that a record does not carry a damaged key any more.
func (x *index) forgetDamaged(e imagepin.Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if d, ok := x.damaged[e.Key]; ok && d.Record == e.Record {
		delete(x.damaged, e.Key)
	}
}

// MarkDamaged records that a key is damaged and could not be repaired yet, so that a start does not believe it before
// everything that it needs has been verified. The key is not durable any more: what a repair unpacks may be lost when the power is
// cut. MarkDamaged writes once: the time of the first mark stays. kept is false if the key is in the index, or if its record does not
// carry it any more. A label that has no room for the mark stays as it is.
func (s *Store) MarkDamaged(ctx context.Context, e imagepin.Entry, reason string) (kept bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	return s.markDamaged(ctx, e, reason)
}

// markDamaged is MarkDamaged for a caller that holds the mutex.
func (s *writer) markDamaged(ctx context.Context, e imagepin.Entry, reason string) (kept bool, _ error) {
	if _, ready := s.Get(e.Key); ready {
		return false, nil
	}
	label := imagepin.KeyLabelName(e.Key)
	img, err := s.record(ctx, e.Record)
	if err != nil {
		return false, err
	}
	if img == nil || img.Target.Digest != e.RecordTarget.Digest || img.Labels[label] == "" {
		s.index.forgetDamaged(e)
		return false, nil
	}
	if now, err := imagepin.DecodeKeyLabel(label, img.Labels[label]); err == nil {
		e.DamagedAt, e.Durable = now.DamagedAt, now.Durable
	}
	if e.DamagedAt.IsZero() || e.Durable != "" {
		e.Durable = ""
		if e.DamagedAt.IsZero() {
			e.DamagedAt = time.Now()
		}
		if _, value, err := imagepin.EncodeKeyLabel(e); err == nil {
			_, err = s.config.Records.Update(ctx, images.Image{Name: e.Record, Labels: map[string]string{label: value}}, "labels."+label)
			if err != nil && !errdefs.IsNotFound(err) {
				return false, fmt.Errorf("mark key %s as damaged: %w", e.Key, err)
			}
		}
	}
	s.NoteDamaged(e, reason)
	return true, nil
}

// EvictSeen removes an entry from the index that is not outdated, because its image is damaged. Its label stays, and is marked as
// damaged if it has a mark of durability. evicted is false if the entry is outdated.
func (s *Store) EvictSeen(ctx context.Context, seen Seen, reason string) (evicted bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	gone := s.evict(s.index.unchanged(group{seen.entry}), reason)
	return len(gone) > 0, s.endDurable(ctx, gone, reason)
}

// endDurable marks keys as damaged that have a mark of durability and have to be unpacked again. Otherwise a start after a power cut
// would believe what was unpacked when the power was cut. The caller holds the mutex.
func (s *writer) endDurable(ctx context.Context, entries []imagepin.Entry, reason string) error {
	for _, e := range entries {
		if e.Durable == "" {
			continue
		}
		if _, err := s.markDamaged(ctx, e, reason); err != nil {
			return err
		}
	}
	return nil
}

// evict removes entries from the index, and notes them as damaged. It returns them. The caller holds the mutex.
func (s *writer) evict(entries []imagepin.Entry, reason string) []imagepin.Entry {
	s.index.replace(entries, nil)
	for _, e := range entries {
		s.NoteDamaged(e, reason)
	}
	return entries
}

// syncDamaged forgets the damaged keys whose record another tool has deleted or changed. img is the record called name, nil
// if it is gone. If that is the record of a tag, it drops the tag's damaged keys. The caller holds the mutex.
func (s *writer) syncDamaged(ctx context.Context, name string, img *images.Image) error {
	for _, d := range s.damagedIf(func(d Damaged) bool { return d.Record == name || d.Ref == name }) {
		switch {
		case d.Record == name:
			if img == nil || img.Target.Digest != d.RecordTarget.Digest || img.Labels[imagepin.KeyLabelName(d.Key)] == "" {
				s.index.forgetDamaged(d.Entry)
			}
		case img == nil && s.hasTagRecord(d.Entry):
			if err := s.dropKey(ctx, d.Entry); err != nil {
				return err
			}
		}
	}
	return nil
}

// damagedBeside returns the damaged keys on the records of removed keys that a change neither removes, nor adds, nor lists in
// recorded. Without them, the record would go with its last key that is ready.
func (s *reader) damagedBeside(recorded, removed, added []imagepin.Entry) (beside []imagepin.Entry) {
	found := s.damagedIf(func(d Damaged) bool {
		on := func(e imagepin.Entry) bool { return e.Record == d.Record }
		return slices.ContainsFunc(removed, on) && !has(recorded, d.Key) && !has(removed, d.Key) && !has(added, d.Key)
	})
	for _, d := range found {
		beside = append(beside, d.Entry)
	}
	return beside
}

// damagedElsewhere returns the damaged keys that are to be recorded on another record, as when a tag has moved. A record's last key
// is not one of them: its image may be the only one of its digest.
func (s *reader) damagedElsewhere(entries []imagepin.Entry) (moved []imagepin.Entry) {
	for _, e := range entries {
		d, ok := s.GetDamaged(e.Key)
		if !ok || d.Record == e.Record {
			continue
		}
		stays := func(o imagepin.Entry) bool { return o.Record == d.Record && !has(entries, o.Key) }
		beside := s.damagedIf(func(o Damaged) bool { return stays(o.Entry) })
		if len(beside) > 0 || slices.ContainsFunc(s.ByRoot(d.Root.Digest), stays) {
			moved = append(moved, d.Entry)
		}
	}
	return moved
}

// isKept reports whether a key needs an image to be unpacked in a snapshotter, or would if it was not damaged.
func (s *reader) isKept(u Unpacked) bool {
	return s.isNeeded(u) || len(s.damagedIf(func(d Damaged) bool {
		return d.ImageID == u.ImageID && d.Target.Snapshotter == u.Snapshotter
	})) > 0
}

// hasDamaged reports whether an image ID has damaged keys. The caller holds the mutex of the index.
func (x *index) hasDamaged(id digest.Digest) bool {
	for _, d := range x.damaged {
		if d.ImageID == id {
			return true
		}
	}
	return false
}
