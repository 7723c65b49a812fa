package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/semaphore"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Records is containerd's image store with a way to change several records at once.
type Records interface {
	images.Store
	// Atomically runs fn. fn must use only the image store and the context that it receives, and the lease manager, and
	// nothing else of containerd. In containerd's process, either all writes of fn are kept or none. Over containerd's
	// socket there are no transactions, so fn writes in an order that is safe without one.
	Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error
}

// collectTimeout limits each garbage collection, and the work that goes on after the caller's context has ended.
const collectTimeout = time.Minute

// Config configures a Store. All fields except PinnedImages and KeysARecord are required.
type Config struct {
	Records     Records
	Content     content.Store
	Leases      leases.Manager
	Snapshotter func(name string) snapshots.Snapshotter
	// Runtimes returns the runtime handlers that are currently configured. Keys for other targets are dropped after the
	// next [Store.Load].
	Runtimes func() *runtimeplatform.Set
	// PinnedImages returns the normalized references that containerd's CRI retains (pinned_images).
	PinnedImages func() []string
	// KeysARecord is how many keys the record of a digest carries. The records of further tags carry their own keys.
	// Zero means 16.
	KeysARecord int
}

// Store holds the keys of a node. It is safe for concurrent use.
type Store struct{ *writer }

type (
	// reader answers from the index.
	reader struct{ index *index }

	// presence finds what exists on the node.
	presence struct {
		*reader
		config    Config
		replacing replacing
	}

	// writer changes records and the index.
	writer struct {
		*presence
		write *semaphore.Weighted // allows one writer at a time, see lock
		ended bool                // guarded by write
		// removed is the time at which the last key of each image was removed. It is guarded by write.
		removed map[digest.Digest]time.Time
	}
)

// New returns a store with an empty index. [Store.Load] fills it.
func New(c Config) *Store {
	if c.PinnedImages == nil {
		c.PinnedImages = func() []string { return nil }
	}
	found := &presence{reader: &reader{newIndex()}, config: c}
	return &Store{&writer{presence: found, write: semaphore.NewWeighted(1), removed: make(map[digest.Digest]time.Time)}}
}

// Change is the result of a write.
type Change struct {
	// Names are the image records that were created or have a new target.
	Names []string
	// Wrote reports whether anything was written.
	Wrote bool
}

// lock makes the caller the only writer until it calls the returned function.
func (s *writer) lock(ctx context.Context) (func(), error) {
	if err := s.write.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	if s.ended {
		s.write.Release(1)
		return nil, fmt.Errorf("imagepin has stopped writing keys until containerd restarts: %w", errdefs.ErrFailedPrecondition)
	}
	return func() { s.write.Release(1) }, nil
}

// Shutdown makes every later write fail with ErrFailedPrecondition.
func (s *writer) Shutdown(ctx context.Context) error {
	unlock, err := s.lock(ctx)
	if errdefs.IsFailedPrecondition(err) {
		return nil // Shutdown was called before
	}
	if err != nil {
		return err
	}
	s.ended = true
	unlock()
	return nil
}

// Put records that keys are ready. An entry replaces the current entry of its key. A lease of the caller must hold the
// content and snapshots of the entries, see [Store.AddToLease]. If proof is not empty, Put adds it to the records that
// carry the keys.
//
// Put writes only differences.
func (s *Store) Put(ctx context.Context, proof string, entries ...imagepin.Entry) (Change, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	return s.put(ctx, proof, entries, nil)
}

// PutUnmoved is [Store.Put] without the entries whose key has another digest now.
func (s *Store) PutUnmoved(ctx context.Context, proof string, entries ...imagepin.Entry) (Change, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	unmoved := slices.DeleteFunc(slices.Clone(entries), func(e imagepin.Entry) bool {
		now, ok := s.Get(e.Key)
		return ok && now.Root.Digest != e.Root.Digest
	})
	return s.put(ctx, proof, unmoved, nil)
}

// put is Put for a caller that holds the lock. pre must hold for anything to be written. A nil pre always holds.
func (s *writer) put(ctx context.Context, proof string, entries []imagepin.Entry, pre precondition) (Change, error) {
	entries, replaced, changed := s.diffEntries(proof, entries)
	if !changed && pre == nil {
		var err error
		if changed, err = s.overwritten(ctx, entries); err != nil {
			return Change{}, err
		}
	}
	if !changed {
		s.index.renew(entries)
		return Change{}, nil
	}
	// Update the snapshots first, so that no record exists whose snapshot has no reference.
	for _, e := range entries {
		if err := s.keepSnapshot(ctx, e); err != nil {
			return Change{}, err
		}
	}
	kept, err := s.keepByDigest(ctx, replaced, entries)
	if err != nil {
		return Change{}, err
	}
	entries = append(entries, kept...)
	before, after, err := s.displaced(entries)
	if err != nil {
		return Change{}, err
	}
	// Entries that move to another record are written first, so that a record carries each key at any time.
	replaced, entries = append(replaced, before...), append(after, entries...)
	return s.commit(ctx, nil, replaced, entries, proof, creatorFor(entries), pre)
}

// keepByDigest returns the images that lose their tag to another digest, under their own digest, unless they have such a
// key or have lost content. It keeps their snapshots. As with stock containerd, they stay until they are removed:
// containers may run them.
func (s *presence) keepByDigest(ctx context.Context, replaced, by []imagepin.Entry) ([]imagepin.Entry, error) {
	var kept []imagepin.Entry
	for _, e := range replaced {
		tag, err := reference.ParseNamed(e.Ref)
		if _, isDigest := tag.(reference.Digested); err != nil || isDigest {
			continue
		}
		if slices.ContainsFunc(by, func(n imagepin.Entry) bool { return n.Key == e.Key && n.Root.Digest == e.Root.Digest }) {
			continue // its source or its record changes, not its digest
		}
		byDigest, err := RecordName(tag, e.Root.Digest)
		if err != nil {
			continue
		}
		k := imagepin.Key{Ref: byDigest, Target: e.Target}
		if _, ok := s.Get(k); ok || slices.ContainsFunc(by, func(n imagepin.Entry) bool { return n.Key == k }) {
			continue
		}
		if e.Record, err = RecordName(tag, e.RecordTarget.Digest); err != nil {
			continue
		}
		e.Key = k
		if err := s.keepSnapshot(ctx, e); errdefs.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		kept = append(kept, e)
	}
	return kept, nil
}

// Recorded reports whether Put has nothing to write.
func (s *presence) Recorded(ctx context.Context, proof string, entries ...imagepin.Entry) (bool, error) {
	entries, _, changed := s.diffEntries(proof, entries)
	if changed {
		return false, nil
	}
	changed, err := s.overwritten(ctx, entries)
	return !changed, err
}

// overwritten reports whether another tool has deleted or moved a record of an entry. [Store.Sync] updates the index
// later, when the event of that change arrives.
func (s *presence) overwritten(ctx context.Context, entries []imagepin.Entry) (bool, error) {
	targets := make(map[string]digest.Digest)
	for _, e := range entries {
		targets[e.Record] = e.RecordTarget.Digest
		if s.hasTagRecord(e) {
			targets[e.Ref] = e.RecordTarget.Digest
		}
	}
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		img, err := s.config.Records.Get(ctx, name)
		if errdefs.IsNotFound(err) || err == nil && img.Target.Digest != targets[name] {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("read image record %s: %w", name, err)
		}
	}
	return false, nil
}

// diffEntries returns entries as they are to be recorded, and the current entries that they replace. changed is false
// if all of them and the proof are already recorded.
func (s *presence) diffEntries(proof string, entries []imagepin.Entry) (wanted, replaced []imagepin.Entry, changed bool) {
	wanted = slices.Clone(entries)
	s.chooseRecords(wanted)
	for i, e := range wanted {
		old, ok := s.Get(e.Key)
		switch {
		case ok && sameImage(old, e):
			wanted[i] = old // keeps ReadyAt
			changed = changed || !s.hasProofOn(e.Record, proof)
		case ok:
			replaced, changed = append(replaced, old), true
		default:
			changed = true
		}
	}
	return wanted, replaced, changed
}

func sameImage(a, b imagepin.Entry) bool {
	return a.Root.Digest == b.Root.Digest && a.Manifest == b.Manifest && a.ImageID == b.ImageID &&
		a.ChainID == b.ChainID && a.Record == b.Record && a.RecordTarget.Digest == b.RecordTarget.Digest &&
		(a.Source == b.Source || b.Source != imagepin.SourcePull) // a pull replaces an entry of another tool
}

// Seen is an entry of the index. It is outdated as soon as the key is recorded again, also for the same image.
type Seen struct{ entry *imagepin.Entry }

// See returns the entry of a key for [Store.RemoveSeen].
func (s *reader) See(k imagepin.Key) (e imagepin.Entry, seen Seen, ok bool) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	now := s.index.byKey[k]
	if now == nil {
		return imagepin.Entry{}, Seen{}, false
	}
	return *now, Seen{now}, true
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
	_, err = s.removeEntries(ctx, current)
	return true, err
}

// Remove removes keys, and the records that no other key needs. The next garbage collection frees the content and
// snapshots that nothing else references, see [Store.Collect]. Remove ignores unknown keys.
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
	return s.removeEntries(ctx, removed)
}

// removeEntries removes entries of the index. The caller holds the lock.
func (s *writer) removeEntries(ctx context.Context, removed []imagepin.Entry) (Change, error) {
	ch, err := s.apply(ctx, removed, nil, "")
	if err != nil {
		return ch, err
	}
	s.noteRemoved(removed)
	failpoint.Reach("remove.recorded")
	// The keys are gone, so release their snapshots even if the caller does not wait any longer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), collectTimeout)
	defer cancel()
	return ch, s.releaseSnapshots(ctx, removed)
}

// Sync updates the keys after another tool may have changed the record called name. It removes keys whose record or tag
// was deleted or now targets another image, and writes missing labels again. It returns the record for adoption if it
// has no key. It does not return a record that carries lost keys, because these are about to be repaired or dropped.
func (s *Store) Sync(ctx context.Context, name string) (*images.Image, error) {
	img, removed, err := s.sync(ctx, name)
	if err != nil || !removed {
		return img, err
	}
	return nil, s.Collect(ctx)
}

// sync is Sync for one record. removed reports whether it has removed the record.
func (s *writer) sync(ctx context.Context, name string) (_ *images.Image, removed bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	carried := s.ByRecord(name)
	img, err := s.config.Records.Get(ctx, name)
	if errdefs.IsNotFound(err) {
		s.index.noteProofs(images.Image{Name: name})
		s.forgetUntagged(name)
		s.index.noteRecord(name, "")
		for _, e := range s.ByRef(name) {
			if s.native(e) && e.Record != name {
				carried = append(carried, e)
			}
		}
		if err := s.detach(ctx, carried); err != nil {
			return nil, false, err
		}
		return nil, false, s.repairIDRecord(ctx, name)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read image record %s: %w", name, err)
	}
	s.index.noteProofs(img)
	s.index.noteRecord(name, img.Target.Digest)
	moved := slices.DeleteFunc(slices.Clone(carried), func(e imagepin.Entry) bool {
		return e.RecordTarget.Digest == img.Target.Digest
	})
	if err := s.detach(ctx, moved); err != nil {
		return nil, false, err
	}
	if stay := s.ByRecord(name); len(stay) > 0 {
		return nil, false, s.repairRecord(ctx, name, stay)
	}
	if s.Accounted(img) || s.carriesLost(img) {
		return nil, false, nil
	}
	if removed, err := s.removeLateRecord(ctx, img); err != nil || removed {
		return nil, removed, err
	}
	return &img, false, nil
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

// repairIDRecord creates the record of an image ID again if another tool has removed it and the image has keys. CRI
// creates containers by image ID.
func (s *writer) repairIDRecord(ctx context.Context, name string) error {
	id, err := digest.Parse(name)
	if err != nil {
		return nil
	}
	entries := s.ByID(id)
	if len(entries) == 0 {
		return nil
	}
	return s.repairRecord(ctx, name, entries)
}

// detach removes keys from a record that was deleted or now targets another image. If the record of a key's tag still
// targets the key's image, the key moves to that record, which also keeps the image. All other keys are removed.
func (s *writer) detach(ctx context.Context, entries []imagepin.Entry) error {
	var moved []imagepin.Entry
	for _, e := range entries {
		if e.Ref == e.Record || !s.native(e) {
			continue
		}
		img, err := s.config.Records.Get(ctx, e.Ref)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read image record %s: %w", e.Ref, err)
		}
		if img.Target.Digest == e.RecordTarget.Digest {
			e.Record = e.Ref
			moved = append(moved, e)
		}
	}
	if len(moved) == 0 {
		return s.forget(ctx, entries)
	}
	if _, err := s.apply(ctx, entries, moved, ""); err != nil {
		return err
	}
	failpoint.Reach("sync.unseated")
	return s.releaseSnapshots(ctx, entries)
}

// forget removes keys whose record another tool has deleted or changed.
func (s *writer) forget(ctx context.Context, entries []imagepin.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	if _, err := s.apply(ctx, entries, nil, ""); err != nil {
		return err
	}
	failpoint.Reach("sync.forgotten")
	return s.releaseSnapshots(ctx, entries)
}

// apply changes the set of entries and updates all affected records. The caller holds the lock.
func (s *writer) apply(ctx context.Context, removed, added []imagepin.Entry, proof string) (Change, error) {
	return s.applyKeeping(ctx, nil, removed, added, proof)
}

// creatorFor allows a change to create the records of entries.
func creatorFor(added []imagepin.Entry) creator {
	names := affected(nil, added)
	return func(name string) bool { return slices.Contains(names, name) }
}

// applyKeeping is apply with keys that are recorded but not in the index. Their records stay.
func (s *writer) applyKeeping(ctx context.Context, recorded, removed, added []imagepin.Entry, proof string) (Change, error) {
	return s.commit(ctx, recorded, removed, added, proof, creatorFor(added), nil)
}

// commit writes the affected records, and then updates the index.
func (s *writer) commit(ctx context.Context, recorded, removed, added []imagepin.Entry, proof string, mayCreate creator, pre precondition) (Change, error) {
	p := plan{
		view:         s.view(removed, added, recorded),
		names:        affected(removed, added),
		gone:         make(map[string]struct{}),
		removable:    make(map[digest.Digest]bool),
		proof:        proof,
		mayCreate:    mayCreate,
		precondition: pre,
	}
	for _, e := range removed {
		p.gone[imagepin.KeyLabelName(e.Key)] = struct{}{}
		p.removable[e.RecordTarget.Digest] = true
	}
	changes, err := s.writePlan(ctx, p)
	if err != nil {
		return Change{}, err
	}
	s.index.replace(removed, added)
	return summarize(changes), nil
}

// writePlan makes the changes of a plan, and returns them.
func (s *writer) writePlan(ctx context.Context, p plan) ([]change, error) {
	// A transaction costs a sync to disk even if it writes nothing.
	changes, err := p.changes(ctx, s.config.Records)
	if err != nil {
		return nil, err
	}
	if len(changes) > 0 {
		err = s.config.Records.Atomically(ctx, func(ctx context.Context, store images.Store) error {
			// Other tools write too, so compute the changes again in the transaction.
			if changes, err = p.changes(ctx, store); err != nil {
				return err
			}
			for i := range changes {
				failpoint.Reach("store.write")
				if err := changes[i].write(ctx, store); err != nil {
					return err
				}
			}
			failpoint.Reach("store.commit")
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	s.index.noteUnsynced(changes)
	for _, c := range changes {
		s.index.noteProofs(c.after)
	}
	return changes, nil
}

func summarize(changes []change) Change {
	ch := Change{Wrote: len(changes) > 0}
	for _, c := range changes {
		if c.retargets() {
			ch.Names = append(ch.Names, c.image.Name)
		}
	}
	return ch
}

// view returns the entries as they are after a change. recorded are keys that are not in the index.
func (s *presence) view(removed, added, recorded []imagepin.Entry) view {
	about := s.index.related(removed, added)
	for _, e := range removed {
		// Another record that carries the same key keeps it.
		if o, ok := about[e.Key]; ok && o.Record == e.Record {
			delete(about, e.Key)
		}
	}
	for i := range added {
		about[added[i].Key] = &added[i]
	}
	v := view{
		entries: make(map[string]group),
		native:  s.native,
		pinned:  func(ref string) bool { return slices.Contains(s.config.PinnedImages(), ref) },
		preferred: func(e *imagepin.Entry) bool {
			return e.Target == s.config.Runtimes().Default().Target
		},
	}
	for _, e := range slices.SortedFunc(maps.Values(about), compareEntries) {
		v.add(e)
	}
	for i := range recorded {
		v.add(&recorded[i])
	}
	return v
}

func (s *presence) native(e imagepin.Entry) bool {
	rt, ok := s.config.Runtimes().ForTarget(e.Target)
	return ok && rt.Native
}

// affected lists the records of entries in an order in which it is safe to write them one by one:
//  1. The tags. A tag record alone is safe, because a start adopts it.
//  2. The records that carry the labels of new keys.
//  3. The image IDs. A start creates a missing one, but cannot account for one without a key.
//  4. The records that keep removed entries alive. A tag can be one of them, and is then written last, because it
//     already exists.
func affected(removed, added []imagepin.Entry) []string {
	var names []string
	listed := make(map[string]bool)
	carries := make(map[string]bool)
	for _, e := range removed {
		carries[e.Record] = true
	}
	add := func(n string) {
		if !listed[n] {
			listed[n] = true
			names = append(names, n)
		}
	}
	for _, e := range added {
		if e.Ref != e.Record && !strings.Contains(e.Ref, "@") && !carries[e.Ref] {
			add(e.Ref)
		}
	}
	for _, e := range added {
		add(e.Record)
	}
	for _, e := range added {
		add(e.ImageID.String())
	}
	for _, e := range removed {
		if !strings.Contains(e.Ref, "@") {
			add(e.Ref)
		}
		add(e.ImageID.String())
	}
	for _, e := range removed {
		add(e.Record)
	}
	return names
}

// Collect runs containerd's garbage collection and waits for it. Removing a label does not trigger a collection, so
// Collect creates a lease and deletes it synchronously.
func (s *writer) Collect(ctx context.Context) error {
	// A collection does not end while a snapshotter hangs.
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	l, err := s.config.Leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Minute),
		leases.WithLabel(imagepin.LeaseLabel, "collect"))
	if err != nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	failpoint.Reach("collect.leased")
	if err := s.config.Leases.Delete(ctx, l, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("collect garbage: %w", err)
	}
	failpoint.Reach("collect.done")
	return nil
}

// decode reads the keys on a record. It logs and ignores labels that it cannot read, because they are damaged or of a
// newer version.
func decode(ctx context.Context, img images.Image) []imagepin.Entry {
	var entries []imagepin.Entry
	for name, value := range img.Labels {
		if !imagepin.IsKeyLabel(name) {
			continue
		}
		e, err := imagepin.DecodeKeyLabel(name, value)
		if err != nil {
			log.G(ctx).WithError(err).WithField("image", img.Name).Warn("ignoring unreadable key label")
			continue
		}
		e.Record, e.RecordTarget = img.Name, img.Target
		entries = append(entries, e)
	}
	return entries
}

func proofValue() string { return time.Now().UTC().Format(time.RFC3339) }

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
	_, err = s.apply(ctx, nil, []imagepin.Entry{now}, "")
	return err
}
