package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// walkTimeout is how long a snapshotter may take to list its snapshots: 10,000
// take containerd's own a second.
const walkTimeout = 10 * time.Second

// Loaded is what a start found besides the keys that are ready.
type Loaded struct {
	// Unexplained are the records that no key in the index speaks of: what
	// another tool put on the node. Where there is an image in a snapshotter
	// that no key accounts for, the records of images that were adopted are
	// among them too: it may be one of those, for one more target.
	Unexplained []images.Image
	// Lost are keys that are recorded, but are not ready: they are not in the
	// index.
	Lost []Loss
	// Have is what the keys were compared with.
	Have *Inventory
}

// Loss is a key that is recorded, and why it is not ready.
type Loss struct {
	Entry imagepin.Entry
	Why   string
	// Mendable tells that only the snapshot is gone: the layers may be here.
	Mendable bool
	// Wait tells that it cannot be told now: the snapshotter does not answer, or a
	// file of its content cannot be read.
	Wait bool
	// Hollow tells that its snapshot is there without its directory.
	Hollow bool
	// Blob is a layer whose file is damaged; empty where the key itself is lost.
	Blob digest.Digest
	// Record is the record of another tool's image that is not a key yet and
	// may become one. It is empty for what has been one.
	Record string
}

// Load builds the index from the labels on the image records. It takes one
// listing of the images, one walk of the content and one walk of each
// snapshotter.
//
// It writes nothing, but for what a crash between two writes has left: labels
// where they do not belong any more, which would come back to life once the key
// is removed from where it does, and images without the record of their ID.
func (s *Store) Load(ctx context.Context) (*Loaded, error) {
	before := s.index.all()
	have, err := s.Inventory(ctx)
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
	names := make(map[string]digest.Digest, len(all)) // record -> its target
	for _, img := range all {
		names[img.Name] = img.Target.Digest
	}
	loaded := &Loaded{Have: have}
	x := newIndex()
	var stale []imagepin.Entry
	texts := make(interned)
	for _, img := range all {
		for _, e := range decode(ctx, img) {
			texts.share(&e)
			if d := e.RecordTarget.Digest; d != e.Root.Digest && d != e.Manifest {
				stale = append(stale, e) // the record has come to mean another image
				continue
			}
			if loss, lost := s.lost(e, have); lost && !s.recordedSince(before, e) {
				loaded.Lost = append(loaded.Lost, loss)
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
			x.add(s.withUser(ctx, e))
		}
		x.noteProofs(img)
	}
	// Labels have no order, and what is done about them is to have one.
	slices.SortFunc(loaded.Lost, func(a, b Loss) int { return compareRecorded(a.Entry, b.Entry) })
	slices.SortFunc(stale, compareRecorded)
	x.noteRecent(names)
	s.index.mu.Lock()
	s.index.byKey, s.index.byRef, s.index.byID = x.byKey, x.byRef, x.byID
	s.index.byRecord, s.index.byRoot, s.index.bySnapshot = x.byRecord, x.byRoot, x.bySnapshot
	s.index.ids, s.index.proofs, s.index.untagged = x.ids, x.proofs, x.untagged
	maps.Copy(s.index.unseen, x.unseen)
	s.index.mu.Unlock()
	for _, e := range stale {
		failpoint.Reach("start.astray")
		label := imagepin.KeyLabelName(e.Key)
		_, err := s.Records.Update(ctx, images.Image{
			Name: e.Record, Labels: map[string]string{label: deletedLabel},
		}, "labels."+label)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("take key %s off image record %s: %w", e.Key, e.Record, err)
		}
	}
	var nameless []imagepin.Entry
	for id, entries := range x.byID {
		if _, ok := names[id.String()]; !ok {
			nameless = append(nameless, entries.values()...)
		}
	}
	slices.SortFunc(nameless, func(a, b imagepin.Entry) int { return compareEntries(&a, &b) })
	if len(nameless) > 0 {
		if _, err := s.apply(ctx, nil, nameless, ""); err != nil {
			return nil, err
		}
	}
	lost := make(map[string]bool, len(loaded.Lost))
	for _, l := range loaded.Lost {
		lost[l.Entry.Record], lost[l.Entry.ImageID.String()] = true, true
	}
	news := s.unclaimed(have)
	loaded.Unexplained = slices.DeleteFunc(all, func(img images.Image) bool {
		return lost[img.Name] || s.Explained(img) && !(news && s.Adopted(img.Name))
	})
	return loaded, nil
}

// compareRecorded orders entries, of which several records may claim one key.
func compareRecorded(a, b imagepin.Entry) int {
	return cmp.Or(compareEntries(&a, &b), cmp.Compare(a.Record, b.Record))
}

// recordedSince reports whether a call has recorded an entry since the index had
// the entries before: an inventory of that time does not know what it needs.
func (s *Store) recordedSince(before map[*imagepin.Entry]bool, e imagepin.Entry) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	now := s.index.byKey[e.Key]
	return now != nil && !before[now] && sameImage(*now, e)
}

// lost tells whether a recorded key is not ready.
func (s *Store) lost(e imagepin.Entry, have *Inventory) (Loss, bool) {
	if _, ok := s.Runtimes().ForTarget(e.Target); !ok {
		return Loss{Entry: e, Why: "no runtime handler has its target"}, true
	}
	why := have.Missing(e)
	if why == "" {
		return Loss{}, false
	}
	whole := have.HasBlob(e.RecordTarget.Digest) && have.HasBlob(e.Manifest) && have.HasBlob(e.ImageID)
	_, silent := have.silent[e.Target.Snapshotter]
	return Loss{
		Entry: e, Why: why, Mendable: whole, Wait: whole && silent || have.unreadable(e),
		Hollow: have.files.hollow[snapshotOf(&e)] != "",
	}, true
}

// Recheck looks again at a key that was lost. ok is false where it is ready now.
func (s *Store) Recheck(e imagepin.Entry, have *Inventory) (_ Loss, ok bool) { return s.lost(e, have) }

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
	blobs     map[digest.Digest][]string     // the snapshotters that a blob names a snapshot in
	snapshots map[string]map[string]struct{} // snapshotter -> committed names
	silent    map[string]error               // snapshotters that do not answer
	files     files
}

// Inventory walks the content and the snapshotters of all handlers. A
// snapshotter that does not answer has no snapshots.
func (s *Store) Inventory(ctx context.Context) (*Inventory, error) {
	inv := &Inventory{
		blobs:     make(map[digest.Digest][]string),
		snapshots: make(map[string]map[string]struct{}),
		silent:    make(map[string]error),
		files:     newFiles(),
	}
	var (
		walks   sync.WaitGroup
		mu      sync.Mutex
		failure error
	)
	walks.Go(func() { failure = recovered(func() error { return s.walkContent(ctx, inv) }) })
	for _, name := range s.Runtimes().Snapshotters() {
		walks.Go(func() {
			committed, err := s.committed(ctx, name)
			if err != nil {
				log.G(ctx).WithError(err).WithField("snapshotter", name).Error("its images are not available: cannot list snapshots")
			}
			mu.Lock()
			defer mu.Unlock()
			if inv.snapshots[name] = committed; err != nil {
				inv.silent[name] = err
			}
		})
	}
	walks.Wait()
	if failure != nil {
		return nil, fmt.Errorf("walk content: %w", failure)
	}
	return inv, ctx.Err()
}

func (s *Store) walkContent(ctx context.Context, inv *Inventory) error {
	err := s.Content.Walk(ctx, func(i content.Info) error {
		inv.files.note(i)
		inv.blobs[i.Digest] = nil
		for label := range i.Labels {
			if name, ok := strings.CutPrefix(label, snapshotRefPrefix); ok {
				inv.blobs[i.Digest] = append(inv.blobs[i.Digest], name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return inv.files.look(ctx, s.Content, false)
}

// recovered makes a panic an error.
func recovered(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return call()
}

// committed walks a snapshotter. One that hangs must not keep the images of the
// others from being served.
func (s *Store) committed(ctx context.Context, snapshotter string) (map[string]struct{}, error) {
	ctx, cancel := context.WithTimeout(ctx, walkTimeout)
	defer cancel()
	names := make(map[string]struct{})
	err := recovered(func() error {
		return s.Snapshotter(snapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			if i.Kind == snapshots.KindCommitted {
				names[i.Name] = struct{}{}
			}
			return nil
		})
	})
	if errdefs.IsNotFound(err) {
		err = nil // it has never had any
	}
	return names, err
}

// HasBlob tells whether the content store has a blob, as a record and as a file.
func (inv *Inventory) HasBlob(d digest.Digest) bool {
	_, ok := inv.blobs[d]
	return ok && inv.files.damaged[d] == nil && inv.files.unread[d] == nil
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
	case !inv.HasBlob(e.RecordTarget.Digest):
		return inv.lacks("index or manifest", e.RecordTarget.Digest)
	case !inv.HasBlob(e.Manifest):
		return inv.lacks("manifest", e.Manifest)
	case !inv.HasBlob(e.ImageID):
		return inv.lacks("configuration", e.ImageID)
	case e.ChainID != "" && inv.silent[e.Target.Snapshotter] != nil:
		return "snapshotter " + e.Target.Snapshotter + " does not answer"
	case !inv.HasSnapshot(e.Target.Snapshotter, e.ChainID):
		return "snapshot " + e.ChainID.String() + " is gone"
	case inv.files.hollow[snapshotOf(&e)] != "":
		return inv.files.hollow[snapshotOf(&e)]
	}
	return ""
}
