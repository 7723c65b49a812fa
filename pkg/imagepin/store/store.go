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
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/semaphore"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Records is containerd's image store, and a way to change several records at
// once.
type Records interface {
	images.Store
	// Atomically runs fn, which may use the given image store and the lease
	// manager, with the context that it is given, and nothing else of
	// containerd. Where containerd can, either all that fn writes is kept or
	// nothing; where it cannot (over its socket), the order of the writes has
	// to be safe, and is.
	Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error
}

// collectTimeout bounds what is done for a caller that has gone.
const collectTimeout = time.Minute

// Config is what a Store works on. All fields but PinnedImages and KeysARecord are required.
type Config struct {
	Records     Records
	Content     content.Store
	Leases      leases.Manager
	Snapshotter func(name string) snapshots.Snapshotter
	// Runtimes returns the runtime handlers that are configured now. Keys of targets that it does not have are dropped
	// after the next [Store.Load].
	Runtimes func() *runtimeplatform.Set
	// PinnedImages returns the normalized references that containerd's CRI retains (pinned_images).
	PinnedImages func() []string
	// KeysARecord is how many keys the record of a digest carries before the
	// records of tags carry those of their own. Zero is 16.
	KeysARecord int
}

// Store is the keys of a node. It is safe for concurrent use.
type Store struct {
	Config
	index *index
	write *semaphore.Weighted // one writer at a time; see lock
	ended bool                // guarded by write
	// removed is when the last key of an image was removed; guarded by write.
	removed map[digest.Digest]time.Time

	replacing replacing
}

// New returns a store with an empty index; see [Store.Load].
func New(c Config) *Store {
	if c.PinnedImages == nil {
		c.PinnedImages = func() []string { return nil }
	}
	return &Store{Config: c, write: semaphore.NewWeighted(1), index: newIndex(), removed: make(map[digest.Digest]time.Time)}
}

// Change is what a write did.
type Change struct {
	// Names are the image records that were created or have a new target.
	Names []string
	// Wrote tells whether anything was written at all.
	Wrote bool
}

// lock makes the caller the only writer until the returned function is called.
func (s *Store) lock(ctx context.Context) (func(), error) {
	if err := s.write.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	if s.ended {
		s.write.Release(1)
		return nil, fmt.Errorf("imagepin writes no more keys until containerd is restarted: %w", errdefs.ErrFailedPrecondition)
	}
	return func() { s.write.Release(1) }, nil
}

// End makes every later write fail with ErrFailedPrecondition.
func (s *Store) End(ctx context.Context) error {
	unlock, err := s.lock(ctx)
	if errdefs.IsFailedPrecondition(err) {
		return nil // it has ended before
	}
	if err != nil {
		return err
	}
	s.ended = true
	unlock()
	return nil
}

// Put records that keys are ready: entries replace what was known of their
// keys. A lease of the caller must hold what they need, see [Store.AddToLease].
// A non-empty proof is noted on the records that carry the keys.
//
// Put writes only what differs, and nothing where nothing does.
func (s *Store) Put(ctx context.Context, proof string, entries ...imagepin.Entry) (Change, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	return s.put(ctx, proof, entries, nil)
}

// put is Put for a caller that holds the lock. still is the condition on which
// anything is written; nil is none.
func (s *Store) put(ctx context.Context, proof string, entries []imagepin.Entry, still condition) (Change, error) {
	entries, replaced, news := s.news(proof, entries)
	if !news {
		return Change{}, nil
	}
	// First, so that no record is written whose snapshot nothing keeps.
	for _, e := range entries {
		if err := s.keepSnapshot(ctx, e); err != nil {
			return Change{}, err
		}
	}
	before, after, err := s.displaced(entries)
	if err != nil {
		return Change{}, err
	}
	// They are written first: a key always has a record that carries it.
	replaced, entries = append(replaced, before...), append(after, entries...)
	return s.bring(ctx, nil, replaced, entries, proof, creates(entries), still)
}

// Recorded reports whether Put would write nothing.
func (s *Store) Recorded(proof string, entries ...imagepin.Entry) bool {
	_, _, news := s.news(proof, entries)
	return !news
}

// news gives entries as they are to be recorded, and those they replace. news
// is false where all of them, and the proof, are recorded already.
func (s *Store) news(proof string, entries []imagepin.Entry) (wanted, replaced []imagepin.Entry, news bool) {
	wanted = slices.Clone(entries)
	s.carried(wanted)
	for i, e := range wanted {
		old, ok := s.Get(e.Key)
		switch {
		case ok && sameImage(old, e):
			wanted[i] = old // it says since when the key has been ready
			news = news || !s.hasProofOn(e.Record, proof)
		case ok:
			replaced, news = append(replaced, old), true
		default:
			news = true
		}
	}
	return wanted, replaced, news
}

func sameImage(a, b imagepin.Entry) bool {
	return a.Root.Digest == b.Root.Digest && a.Manifest == b.Manifest && a.ImageID == b.ImageID &&
		a.ChainID == b.ChainID && a.Record == b.Record && a.RecordTarget.Digest == b.RecordTarget.Digest &&
		(a.Source == b.Source || b.Source != imagepin.SourcePull) // another tool's that was pulled since is news
}

// Remove takes keys away, and the records that no key needs any more. What they
// kept alive goes with the next garbage collection, as far as nothing else holds
// it: see [Store.Collect]. Keys that are not there are ignored.
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
	ch, err := s.apply(ctx, removed, nil, "")
	if err != nil {
		return ch, err
	}
	s.noteRemoved(removed)
	failpoint.Reach("remove.recorded")
	// The keys are gone: what they held has to go too, whoever still waits.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), collectTimeout)
	defer cancel()
	return ch, s.releaseSnapshots(ctx, removed)
}

// Sync takes notice of what another tool has done to the record called name.
// Keys whose record or tag is gone, or has come to mean something else, are
// removed; labels that were wiped are written again. It returns the record
// where no key accounts for it, for adoption to look at: one that carries lost
// keys is about to be repaired or removed, and is none.
func (s *Store) Sync(ctx context.Context, name string) (*images.Image, error) {
	img, removed, err := s.sync(ctx, name)
	if err != nil || !removed {
		return img, err
	}
	return nil, s.Collect(ctx)
}

// sync is Sync; removed reports whether it has removed the record.
func (s *Store) sync(ctx context.Context, name string) (_ *images.Image, removed bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	carried := s.ByRecord(name)
	img, err := s.Records.Get(ctx, name)
	if errdefs.IsNotFound(err) {
		s.index.noteProofs(images.Image{Name: name})
		s.forgetUntagged(name)
		s.index.noteRecord(name, "")
		for _, e := range s.ByRef(name) {
			if s.native(e) && e.Record != name {
				carried = append(carried, e)
			}
		}
		if err := s.unseat(ctx, carried); err != nil {
			return nil, false, err
		}
		return nil, false, s.bringBackID(ctx, name)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read image record %s: %w", name, err)
	}
	s.index.noteProofs(img)
	s.index.noteRecord(name, img.Target.Digest)
	moved := slices.DeleteFunc(slices.Clone(carried), func(e imagepin.Entry) bool {
		return e.RecordTarget.Digest == img.Target.Digest
	})
	if err := s.unseat(ctx, moved); err != nil {
		return nil, false, err
	}
	if stay := s.ByRecord(name); len(stay) > 0 {
		return nil, false, s.repairRecord(ctx, name, stay)
	}
	if s.Accounted(img) || s.carriesLost(img) {
		return nil, false, nil
	}
	if removed, err := s.removeLate(ctx, img); err != nil || removed {
		return nil, removed, err
	}
	return &img, false, nil
}

// repairRecord writes again what is missing on the record called name, which carries
// entries, and makes the records of their image IDs where they are gone. The
// records of their tags have events of their own.
func (s *Store) repairRecord(ctx context.Context, name string, entries []imagepin.Entry) error {
	names := []string{name}
	for _, e := range entries {
		if id := e.ImageID.String(); !slices.Contains(names, id) {
			names = append(names, id)
		}
	}
	_, err := s.align(ctx, plan{view: s.view(nil, entries, nil), names: names, mayCreate: isID})
	return err
}

// bringBackID writes the record of an image ID again that another tool has removed,
// where there are keys of it: containers are made by their ID.
func (s *Store) bringBackID(ctx context.Context, name string) error {
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

// unseat takes keys off a record that is gone, or means another image. Those of a tag whose own record is
// still there move to that, which keeps the image as well; the others are
// removed.
func (s *Store) unseat(ctx context.Context, entries []imagepin.Entry) error {
	var moved []imagepin.Entry
	for _, e := range entries {
		if e.Ref == e.Record || !s.native(e) {
			continue
		}
		img, err := s.Records.Get(ctx, e.Ref)
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

// forget removes keys that another tool has taken the ground from under.
func (s *Store) forget(ctx context.Context, entries []imagepin.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	if _, err := s.apply(ctx, entries, nil, ""); err != nil {
		return err
	}
	failpoint.Reach("sync.forgotten")
	return s.releaseSnapshots(ctx, entries)
}

// apply changes the set of entries and brings every record into line that one
// of them is about. The caller holds the lock.
func (s *Store) apply(ctx context.Context, removed, added []imagepin.Entry, proof string) (Change, error) {
	return s.applyBeside(ctx, nil, removed, added, proof)
}

// creates lets the records be made that entries are about.
func creates(added []imagepin.Entry) creator {
	names := affected(nil, added)
	return func(name string) bool { return slices.Contains(names, name) }
}

// applyBeside is apply where there are keys that are recorded and not in the
// index: their records stay.
func (s *Store) applyBeside(ctx context.Context, recorded, removed, added []imagepin.Entry, proof string) (Change, error) {
	return s.bring(ctx, recorded, removed, added, proof, creates(added), nil)
}

func (s *Store) bring(ctx context.Context, recorded, removed, added []imagepin.Entry, proof string, mayCreate creator, still condition) (Change, error) {
	p := plan{
		view:      s.view(removed, added, recorded),
		names:     affected(removed, added),
		gone:      make(map[string]struct{}),
		ours:      make(map[digest.Digest]bool),
		proof:     proof,
		mayCreate: mayCreate,
		still:     still,
	}
	for _, e := range removed {
		p.gone[imagepin.KeyLabelName(e.Key)] = struct{}{}
		p.ours[e.RecordTarget.Digest] = true
	}
	changes, err := s.align(ctx, p)
	if err != nil {
		return Change{}, err
	}
	s.index.replace(removed, added)
	return summarize(changes), nil
}

// align brings the records of a plan into line, and gives what it has written.
func (s *Store) align(ctx context.Context, p plan) ([]change, error) {
	// A transaction costs a sync to disk even where nothing is written in it.
	changes, err := p.changes(ctx, s.Records)
	if err != nil {
		return nil, err
	}
	if len(changes) > 0 {
		err = s.Records.Atomically(ctx, func(ctx context.Context, store images.Store) error {
			// Other tools write too: what counts is what is there now.
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
	s.index.noteUnseen(changes)
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

// view is the entries as they will be after a change. recorded are keys that are
// not in the index.
func (s *Store) view(removed, added, recorded []imagepin.Entry) view {
	about := s.index.beside(removed, added)
	for _, e := range removed {
		// Another record may carry the same key, and keeps it.
		if o, ok := about[e.Key]; ok && o.Record == e.Record {
			delete(about, e.Key)
		}
	}
	for i := range added {
		about[added[i].Key] = &added[i]
	}
	v := view{
		about:  make(map[string]group),
		native: s.native,
		pinned: func(ref string) bool { return slices.Contains(s.PinnedImages(), ref) },
		preferred: func(e *imagepin.Entry) bool {
			return e.Target == s.Runtimes().Default().Target
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

func (s *Store) native(e imagepin.Entry) bool {
	rt, ok := s.Runtimes().ForTarget(e.Target)
	return ok && rt.Native
}

// affected lists the records that entries are about, in the order in which it
// is safe to write them one by one: first the tag, which promises nothing and
// would be adopted, then what carries the labels of new keys, then the ID, which
// a start makes where it is missing and could not explain alone, and what keeps
// the old alive last. That can be the tag: it exists, and can wait.
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

// Collect runs containerd's garbage collection and waits for it. Deleting an
// image record synchronously would do, but a label that is dropped triggers
// nothing: a lease that is made and deleted does.
func (s *Store) Collect(ctx context.Context) error {
	// A snapshotter that hangs keeps a collection from ending.
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	l, err := s.Leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Minute),
		leases.WithLabel(imagepin.LeaseLabel, "collect"))
	if err != nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	failpoint.Reach("collect.leased")
	if err := s.Leases.Delete(ctx, l, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("collect garbage: %w", err)
	}
	failpoint.Reach("collect.done")
	return nil
}

// decode reads the keys on a record. A label that cannot be read is somebody
// else's business (a newer version, a damaged one): it is logged, left alone,
// and the key is as if it were not there.
func decode(ctx context.Context, img images.Image) []imagepin.Entry {
	var entries []imagepin.Entry
	for name, value := range img.Labels {
		if !imagepin.IsKeyLabel(name) {
			continue
		}
		e, err := imagepin.DecodeKeyLabel(name, value)
		if err != nil {
			log.G(ctx).WithError(err).WithField("image", img.Name).Warn("a key is left alone that cannot be read")
			continue
		}
		e.Record, e.RecordTarget = img.Name, img.Target
		entries = append(entries, e)
	}
	return entries
}

func proofValue() string { return time.Now().UTC().Format(time.RFC3339) }

// Realign writes the records of an entry again, as far as they differ.
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
