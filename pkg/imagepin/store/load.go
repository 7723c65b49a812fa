package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Loaded is what is recorded besides the keys that are ready.
type Loaded struct {
	// Lost are keys that are recorded and not ready, in order. They are not in the index.
	Lost []imagepin.Entry
	// Records are all image records.
	Records []images.Image
}

// Look looks at what there is on the node, and returns what reports whether a recorded key is ready.
type Look func(ctx context.Context) (ready func(imagepin.Entry) bool, _ error)

// Load builds the index from the labels on the image records. look is called before they are listed.
//
// It writes nothing, but for what a crash between two writes has left: labels that do not count any more, which would
// count again once the key is removed from where it does, and images without the record of their ID.
func (s *Store) Load(ctx context.Context, look Look) (*Loaded, error) {
	before := s.index.all()
	ready, err := look(ctx)
	if err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := s.Records.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	targets := make(map[string]digest.Digest, len(all))
	for _, img := range all {
		targets[img.Name] = img.Target.Digest
	}
	r := &reading{s: s, x: newIndex(), targets: targets, ready: func(e imagepin.Entry) bool {
		return ready(e) || s.recordedSince(before, e)
	}}
	for _, img := range all {
		r.read(ctx, img)
	}
	r.x.noteRecent(targets)
	// Labels have no order, and what is done about them is to have one.
	slices.SortFunc(r.lost, compareRecorded)
	slices.SortFunc(r.stale, compareRecorded)
	s.index.become(r.x)
	if err := s.unlabel(ctx, r.stale); err != nil {
		return nil, err
	}
	if err := s.nameIDs(ctx, targets); err != nil {
		return nil, err
	}
	return &Loaded{Lost: r.lost, Records: all}, nil
}

// reading reads the labels of image records into an index.
type reading struct {
	s       *Store
	x       *index
	targets map[string]digest.Digest // of the records, by name
	ready   func(imagepin.Entry) bool
	lost    []imagepin.Entry
	stale   []imagepin.Entry // those whose label does not count
}

func (r *reading) read(ctx context.Context, img images.Image) {
	for _, e := range decode(ctx, img) {
		intern(&e)
		_, tagHere := r.targets[e.Ref]
		d := e.RecordTarget.Digest
		switch {
		case d != e.Root.Digest && d != e.Manifest: // the record has come to mean another image
			r.stale = append(r.stale, e)
		case !r.ready(e):
			r.lost = append(r.lost, e)
		case !tagHere && r.s.tagged(e): // as Sync has it: the tag is gone
			r.stale = append(r.stale, e)
		default:
			r.add(ctx, e)
		}
	}
	r.x.noteProofs(img)
}

// add adds a key. Where two records claim it, the later one is right.
func (r *reading) add(ctx context.Context, e imagepin.Entry) {
	if o := r.x.byKey[e.Key]; o != nil {
		if !e.ReadyAt.After(o.ReadyAt) {
			r.stale = append(r.stale, e)
			return
		}
		r.stale = append(r.stale, *o)
	}
	r.x.remove(e.Key)
	r.x.add(r.s.withUser(ctx, e))
}

// unlabel takes the labels of keys off the records that they are on.
func (s *Store) unlabel(ctx context.Context, stale []imagepin.Entry) error {
	for _, e := range stale {
		failpoint.Reach("start.unlabel")
		label := imagepin.KeyLabelName(e.Key)
		_, err := s.Records.Update(ctx, images.Image{
			Name: e.Record, Labels: map[string]string{label: deletedLabel},
		}, "labels."+label)
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("take key %s off image record %s: %w", e.Key, e.Record, err)
		}
	}
	return nil
}

// nameIDs writes the records of the image IDs that have none. The caller holds the lock.
func (s *Store) nameIDs(ctx context.Context, targets map[string]digest.Digest) error {
	var nameless []imagepin.Entry
	s.index.mu.RLock()
	for id, entries := range s.index.byID {
		if _, ok := targets[id.String()]; !ok {
			nameless = append(nameless, entries.values()...)
		}
	}
	s.index.mu.RUnlock()
	if len(nameless) == 0 {
		return nil
	}
	slices.SortFunc(nameless, Compare)
	_, err := s.apply(ctx, nil, nameless, "")
	return err
}

// become has an index be another one, but for which records upstream may not know.
func (x *index) become(o *index) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byKey, x.byRef, x.byID = o.byKey, o.byRef, o.byID
	x.byRecord, x.byRoot, x.bySnapshot = o.byRecord, o.byRoot, o.bySnapshot
	x.ids, x.proofs, x.untagged = o.ids, o.proofs, o.untagged
	maps.Copy(x.unseen, o.unseen)
}

// compareRecorded orders entries, of which several records may claim one key.
func compareRecorded(a, b imagepin.Entry) int {
	return cmp.Or(Compare(a, b), cmp.Compare(a.Record, b.Record))
}

// recordedSince reports whether a call has recorded an entry since the index had
// the entries before: an inventory of that time does not know what it needs.
func (s *Store) recordedSince(before map[*imagepin.Entry]bool, e imagepin.Entry) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	now := s.index.byKey[e.Key]
	return now != nil && !before[now] && sameImage(*now, e)
}

// Drop takes a key that is recorded but not in the index off its record, and
// frees what only it held.
func (s *Store) Drop(ctx context.Context, e imagepin.Entry) error {
	if err := s.drop(ctx, e); err != nil {
		return err
	}
	return s.Collect(ctx)
}

func (s *Store) drop(ctx context.Context, e imagepin.Entry) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if now, ok := s.Get(e.Key); ok && now.Record == e.Record {
		return nil // it has been made ready meanwhile
	}
	others, err := s.lostBeside(ctx, e)
	if err != nil {
		return err
	}
	dropped := []imagepin.Entry{e}
	if _, err := s.applyBeside(ctx, others, dropped, nil, ""); err != nil {
		return err
	}
	s.noteRemoved(dropped)
	return s.releaseSnapshots(ctx, dropped)
}

// lostBeside gives the other keys on an entry's record that are not in the
// index. They are dropped or healed in their turn: if their record went now,
// nothing would remember them after a crash, nor the records of their tags.
func (s *Store) lostBeside(ctx context.Context, e imagepin.Entry) ([]imagepin.Entry, error) {
	img, err := s.Records.Get(ctx, e.Record)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read image record %s: %w", e.Record, err)
	}
	return slices.DeleteFunc(decode(ctx, img), func(o imagepin.Entry) bool {
		now, ready := s.Get(o.Key)
		return o.Key == e.Key || ready && now.Record == o.Record
	}), nil
}

// carriesLost reports whether a record carries a key that is not in the index, and
// means its image: the key was lost, and is repaired or dropped in its turn.
func (s *Store) carriesLost(img images.Image) bool {
	for name, value := range img.Labels {
		if !imagepin.IsKeyLabel(name) {
			continue
		}
		e, err := imagepin.DecodeKeyLabel(name, value)
		if err != nil || img.Target.Digest != e.Root.Digest && img.Target.Digest != e.Manifest {
			continue
		}
		if _, ready := s.Get(e.Key); !ready {
			return true
		}
	}
	return false
}

// tagged tells whether an entry comes with a record of its tag, besides the one
// that carries its label.
func (s *Store) tagged(e imagepin.Entry) bool {
	return s.native(e) && e.Record != e.Ref && !strings.Contains(e.Ref, "@")
}

// Explained tells whether the keys in the index account for a record as it is:
// it carries keys, or it is the ID or the tag of an image that has some. What
// is not explained is for adoption to look at.
func (s *Store) Accounted(img images.Image) bool {
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
