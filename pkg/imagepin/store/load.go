package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Loaded is what [Store.Load] reads besides the keys that are ready.
type Loaded struct {
	// Lost are the keys that are recorded but not ready, in order. They are not in the index, see [Damaged].
	Lost []imagepin.Entry
	// Former are the keys that are ready but whose target no runtime handler has, in order.
	Former []imagepin.Entry
	// Superseded are keys like those of Former whose image has become ready for a target of a handler since, in order. They
	// are not in the index, and are to be dropped.
	Superseded []imagepin.Entry
	// Records are all image records.
	Records []images.Image
}

// ReadyFunc inspects the node. The returned function reports whether a recorded key is ready.
type ReadyFunc func(ctx context.Context) (ready func(imagepin.Entry) bool, _ error)

// Load builds the index from the labels on the image records. It calls look before it lists the records.
//
// Load only writes to clean up after a crash between two writes. It moves the tags that a pull was about to move. It
// removes labels that are not valid any more, because they would become valid again after the key is removed from its
// current record. It also repairs the records of image IDs.
func (s *Store) Load(ctx context.Context, look ReadyFunc) (*Loaded, error) {
	before := s.Mark()
	ready, err := look(ctx)
	if err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	gone := s.index.allUnsynced()
	all, err := s.config.Records.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	targets := make(map[string]digest.Digest, len(all))
	for _, img := range all {
		targets[img.Name] = img.Target.Digest
	}
	maps.DeleteFunc(gone, func(name string, target digest.Digest) bool { return targets[name] == target })
	l := &loader{s: s, x: newIndex(), targets: targets, replaced: make(map[string][]digest.Digest), texts: make(texts), ready: func(e imagepin.Entry) bool {
		return ready(e) || s.RecordedSince(before, e)
	}}
	for _, img := range all {
		l.read(ctx, img)
	}
	unused, superseded := l.splitUnused()
	l.x.noteRecent(targets)
	// Labels have no order, so sort the keys to process them in a stable order.
	slices.SortFunc(l.lost, compareRecorded)
	slices.SortFunc(l.stale, compareRecorded)
	for _, e := range l.lost {
		l.x.noteDamaged(Damaged{Entry: e})
	}
	s.index.replaceAll(l.x, gone)
	if all, err = s.moveTags(ctx, all, l.replaced); err != nil {
		return nil, err
	}
	if err := s.removeLabels(ctx, l.stale); err != nil {
		return nil, err
	}
	if err := s.repairIDRecords(ctx, targets); err != nil {
		return nil, err
	}
	if err := s.endPinned(ctx, all); err != nil {
		return nil, err
	}
	return &Loaded{Lost: l.lost, Former: unused, Superseded: superseded, Records: all}, nil
}

// loader reads the labels of image records into an index.
type loader struct {
	s       *Store
	x       *index
	targets map[string]digest.Digest // of the records, by name
	ready   func(imagepin.Entry) bool
	lost    []imagepin.Entry
	stale   []imagepin.Entry // keys whose label is not valid any more
	// replaced are the targets that keys had on their other record, by reference.
	replaced map[string][]digest.Digest
	texts    texts
}

func (l *loader) read(ctx context.Context, img images.Image) {
	for _, e := range decode(ctx, img) {
		l.texts.share(&e)
		_, tagHere := l.targets[e.Ref]
		d := e.RecordTarget.Digest
		switch {
		case d != e.Root.Digest && d != e.Manifest: // the record targets another image
			l.stale = append(l.stale, e)
		case !l.ready(e):
			l.lost = append(l.lost, e)
		case !tagHere && l.s.hasTagRecord(e): // the tag was deleted, same as in Sync
			l.stale = append(l.stale, e)
		default:
			l.add(ctx, e)
		}
	}
	l.x.noteLabels(img)
}

// add adds a key. If two records carry the key, the one that was made ready later wins.
func (l *loader) add(ctx context.Context, e imagepin.Entry) {
	if o := l.x.get(e.Key); o != nil {
		if !e.ReadyAt.After(o.ReadyAt) {
			l.replace(e)
			return
		}
		l.replace(o.entry())
	}
	l.x.remove(e.Key)
	e = l.s.withUser(ctx, e)
	l.x.add(&e)
}

// splitUnused returns the keys whose target no runtime handler has. It removes the superseded ones from the index: a call
// that made their images ready for the target of a handler was killed before it removed them. If the image was ready for
// both before the configuration changed, both keys stay.
func (l *loader) splitUnused() (unused, superseded []imagepin.Entry) {
	targets := l.s.config.Runtimes().Targets()
	for e := range l.x.each() {
		if !slices.Contains(targets, e.target.Value()) {
			unused = append(unused, e.entry())
		}
	}
	unused = slices.DeleteFunc(unused, func(e imagepin.Entry) bool {
		if !slices.ContainsFunc(l.x.byRef[e.Ref], func(now *held) bool { return supersedes(now, e, targets) }) {
			return false
		}
		superseded = append(superseded, e)
		return true
	})
	for _, e := range superseded {
		l.x.remove(e.Key)
	}
	slices.SortFunc(unused, compareRecorded)
	slices.SortFunc(superseded, compareRecorded)
	return unused, superseded
}

// supersedes reports whether an image became ready for the target of a handler after another key of it was unused.
func supersedes(now *held, unused imagepin.Entry, targets []runtimeplatform.Target) bool {
	target := now.target.Value()
	return slices.Contains(targets, target) && target.Platform == unused.Target.Platform && now.Root.Digest == unused.Root.Digest &&
		!unused.UnusedAt.IsZero() && now.ReadyAt.After(unused.UnusedAt)
}

// replace notes a key that another record carries with a later digest.
func (l *loader) replace(old imagepin.Entry) {
	l.stale = append(l.stale, old)
	l.replaced[old.Ref] = append(l.replaced[old.Ref], old.RecordTarget.Digest)
}

// moveTags moves the tags that pulls were about to move when they were killed: those that still have a target that their
// keys had before, and those that were written before all their keys. It returns all with the new targets. The caller holds
// the lock.
func (s *writer) moveTags(ctx context.Context, all []images.Image, replaced map[string][]digest.Digest) ([]images.Image, error) {
	for i, img := range all {
		if s.Accounted(img) || !slices.Contains(replaced[img.Name], img.Target.Digest) && !s.precedesKeys(img) {
			continue
		}
		p := plan{view: s.view(nil, s.ByRef(img.Name), nil), names: []string{img.Name}, mayCreate: isID}
		changes, err := s.writePlan(ctx, p)
		if err != nil {
			return nil, err
		}
		for _, c := range changes {
			all[i] = c.after
		}
	}
	return all, nil
}

// precedesKeys reports whether the record of a tag was written before all keys that need it. Another tool cannot have moved
// the tag since.
func (s *presence) precedesKeys(img images.Image) bool {
	keys := slices.DeleteFunc(s.ByRef(img.Name), func(e imagepin.Entry) bool { return !s.native(e) })
	return len(keys) > 0 && !slices.ContainsFunc(keys, func(e imagepin.Entry) bool { return !e.ReadyAt.After(img.UpdatedAt) })
}

// removeLabels removes the labels of keys from their records.
func (s *writer) removeLabels(ctx context.Context, stale []imagepin.Entry) error {
	for _, e := range stale {
		failpoint.Reach("start.unlabel")
		label := imagepin.KeyLabelName(e.Key)
		_, err := s.config.Records.Update(ctx, images.Image{
			Name: e.Record, Labels: map[string]string{label: deletedLabel},
		}, "labels."+label)
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove key %s from image record %s: %w", e.Key, e.Record, err)
		}
	}
	return nil
}

// repairIDRecords creates the missing records of image IDs, and moves those that target an image without a key to one that
// has keys. A kill before the last write of a pull leaves both. targets are those of all records, by name. The caller holds
// the lock.
func (s *writer) repairIDRecords(ctx context.Context, targets map[string]digest.Digest) error {
	var (
		names   []string
		entries []imagepin.Entry
	)
	s.index.mu.RLock()
	for id, about := range s.index.byID {
		target := targets[id.String()]
		if !slices.ContainsFunc(about, func(e *held) bool { return e.targetDigest() == target }) {
			names = append(names, id.String())
			entries = append(entries, about.values()...)
		}
	}
	s.index.mu.RUnlock()
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	_, err := s.writePlan(ctx, plan{view: s.view(nil, entries, nil), names: names, mayCreate: isID})
	return err
}

// replaceAll replaces the index with another one. It keeps the records that containerd's CRI may not know yet, except
// those that are gone or have another target.
func (x *index) replaceAll(o *index, gone map[string]digest.Digest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byRef, x.byID = o.byRef, o.byID
	x.sortedIDs.forget()
	x.byRecord, x.byRoot, x.bySnapshot, x.imported = o.byRecord, o.byRoot, o.bySnapshot, o.imported
	x.proofs, x.pinned, x.untagged, x.unreadable, x.damaged = o.proofs, o.pinned, o.untagged, o.unreadable, o.damaged
	maps.DeleteFunc(x.unsynced, func(name string, target digest.Digest) bool { return gone[name] == target })
	maps.Copy(x.unsynced, o.unsynced)
}

// compareRecorded orders entries of which several can have the same key.
func compareRecorded(a, b imagepin.Entry) int {
	return cmp.Or(Compare(a, b), cmp.Compare(a.Record, b.Record))
}

// Drop removes a key that is recorded but not in the index from its record, and frees what nothing else references.
func (s *Store) Drop(ctx context.Context, e imagepin.Entry) error {
	if err := s.drop(ctx, e); err != nil {
		return err
	}
	return s.Collect(ctx)
}

func (s *writer) drop(ctx context.Context, e imagepin.Entry) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return s.dropKey(ctx, e)
}

// dropKey is drop for a caller that holds the mutex.
func (s *writer) dropKey(ctx context.Context, e imagepin.Entry) error {
	if now, ok := s.Get(e.Key); ok && now.Record == e.Record {
		return nil // the key was made ready concurrently
	}
	others, err := s.otherLost(ctx, e)
	if err != nil {
		return err
	}
	dropped := []imagepin.Entry{e}
	if _, err := s.commit(ctx, others, dropped, nil, plan{mayCreate: s.creatorFor(nil)}); err != nil {
		return err
	}
	s.index.forgetDamaged(e)
	s.noteRemoved(dropped)
	return s.releaseSnapshots(ctx, dropped)
}

// otherLost returns the other keys on an entry's record that are not in the index. These are dropped or repaired
// separately. If their record was removed now, neither they nor the records of their tags would be known after a crash.
func (s *presence) otherLost(ctx context.Context, e imagepin.Entry) ([]imagepin.Entry, error) {
	img, err := s.record(ctx, e.Record)
	if err != nil || img == nil {
		return nil, err
	}
	return slices.DeleteFunc(decode(ctx, *img), func(o imagepin.Entry) bool {
		now, ready := s.Get(o.Key)
		return o.Key == e.Key || ready && now.Record == o.Record
	}), nil
}

// lostOn returns the keys on a record that are not in the index and whose image it targets, in no particular order. Such
// a key was lost, and is about to be repaired or dropped.
func (s *presence) lostOn(img images.Image) (lost []imagepin.Entry) {
	for e, err := range keyLabels(img) {
		if err != nil || img.Target.Digest != e.Root.Digest && img.Target.Digest != e.Manifest {
			continue
		}
		if _, ready := s.Get(e.Key); !ready {
			lost = append(lost, e)
		}
	}
	return lost
}

// Accounted reports whether a record belongs to keys in the index. It either carries keys, or it is the image ID or the
// tag of an image with keys. Adoption handles all other records.
func (s *presence) Accounted(img images.Image) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	if len(s.index.byRecord[img.Name]) > 0 {
		return s.index.byRecord[img.Name][0].targetDigest() == img.Target.Digest
	}
	if id, err := digest.Parse(img.Name); err == nil {
		return len(s.index.byID[id]) > 0
	}
	return slices.ContainsFunc(s.index.byRef[img.Name], func(e *held) bool {
		return e.targetDigest() == img.Target.Digest
	})
}
