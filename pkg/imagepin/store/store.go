package store

import (
	"context"
	"fmt"
	"iter"
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

// Config configures a Store. All fields except PinnedImages, Released, Collect, KeysARecord and AdoptAtATime are required.
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
	// Released is called after [Store.Sync] has removed a record, to start a garbage collection. It must not wait for the
	// collection.
	Released func()
	// Collect runs containerd's garbage collection and waits for it. If it is nil, the deletion of a lease does.
	Collect func(context.Context) error
	// KeysARecord is how many keys the record of a digest carries. The records of further tags carry their own keys.
	// Zero means 16.
	KeysARecord int
	// AdoptAtATime is how many images [Store.Adopt] records at a time, each in writes of its own. It is for Records without
	// transactions. If it is zero, Adopt records all images in one transaction.
	AdoptAtATime int
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
		// unreleased are the snapshots that removed images may still reference, see [Store.Collect]. It is guarded by
		// write.
		unreleased map[Unpacked]struct{}
	}
)

// New returns a store with an empty index. [Store.Load] fills it.
func New(c Config) *Store {
	if c.PinnedImages == nil {
		c.PinnedImages = func() []string { return nil }
	}
	if c.Released == nil {
		c.Released = func() {}
	}
	found := &presence{reader: &reader{newIndex()}, config: c}
	return &Store{&writer{presence: found, write: semaphore.NewWeighted(1), removed: make(map[digest.Digest]time.Time), unreleased: make(map[Unpacked]struct{})}}
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

// apply changes the set of entries and updates all affected records. The caller holds the mutex.
func (s *writer) apply(ctx context.Context, removed, added []imagepin.Entry) (Change, error) {
	return s.commit(ctx, nil, removed, added, plan{mayCreate: s.creatorFor(added)})
}

// creatorFor allows a change to create the records of entries.
func (s *presence) creatorFor(added []imagepin.Entry) creator {
	names := s.affected(nil, added)
	return func(name string) bool { return slices.Contains(names, name) }
}

// commit writes the affected records, and then updates the index. recorded are keys that are recorded but not in the index: their
// records stay. p has the rest of the plan.
func (s *writer) commit(ctx context.Context, recorded, removed, added []imagepin.Entry, p plan) (Change, error) {
	recorded = append(recorded, s.damagedBeside(recorded, removed, added)...)
	p.view, p.names = s.view(removed, added, recorded), s.affected(removed, added)
	p.gone, p.removable = make(map[string]struct{}), make(map[digest.Digest]bool)
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
	var changes []change
	if !p.needed { // a transaction costs a sync to disk even if it writes nothing
		var err error
		if changes, err = p.changes(ctx, s.config.Records); err != nil {
			return nil, err
		}
	}
	if p.needed || len(changes) > 0 {
		err := s.config.Records.Atomically(ctx, func(ctx context.Context, store images.Store) error {
			// Other tools write too, so compute the changes again in the transaction.
			var err error
			if changes, err = p.write(ctx, store); err != nil {
				return err
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
		s.index.noteLabels(c.after)
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
		about[added[i].Key] = hold(&added[i], nil)
	}
	v := view{
		entries: make(map[string]group),
		native:  s.isNative,
		pinned:  func(ref string) bool { return slices.Contains(s.config.PinnedImages(), ref) },
		preferred: func(t runtimeplatform.Target) bool {
			return t == s.config.Runtimes().Default().Target
		},
	}
	for _, e := range slices.SortedFunc(maps.Values(about), compareHeld) {
		v.add(e)
	}
	for i := range recorded {
		v.add(hold(&recorded[i], nil))
	}
	return v
}

// native reports whether the platform of an entry is the node's own. The entry may be unused.
func (s *presence) native(e imagepin.Entry) bool { return s.isNative(e.Target) }

// isNative is native for the target of an entry.
func (s *presence) isNative(target runtimeplatform.Target) bool {
	runtimes := s.config.Runtimes()
	if rt, used := runtimes.ForTarget(target); used {
		return rt.Native
	}
	return slices.ContainsFunc(runtimes.Targets(), func(t runtimeplatform.Target) bool { // sandboxes have the node's platform
		rt, ok := runtimes.ForTarget(t)
		return ok && rt.Native && t.Platform == target.Platform
	})
}

// hasTagRecord reports whether an entry has a record of its tag besides the record that carries its label.
func (s *presence) hasTagRecord(e imagepin.Entry) bool {
	return s.native(e) && e.Record != e.Ref && !strings.Contains(e.Ref, "@")
}

// affected lists the records of entries in an order in which it is safe to write them one by one:
//  1. The tags without a key. A tag record alone is safe, because a start adopts it.
//  2. The records that carry the labels of new keys.
//  3. The image IDs. A start creates a missing one, but cannot account for one without a key.
//  4. The tags with a key. If such a record moved first, a start would take it for the work of another tool, and move
//     the keys of other targets, too. [Store.Load] moves it instead.
//  5. The records that carry removed entries. They keep these alive, and the old key of a tag tells a start that a pull was
//     about to move the tag. A record that also gets a key by digest is one of them: without that write, a start adopts
//     the image by the name of the record. A tag can be one of them, too.
func (s *presence) affected(removed, added []imagepin.Entry) []string {
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
	addTags := func(withKey bool) {
		for _, e := range added {
			if e.Ref == e.Record || strings.Contains(e.Ref, "@") || carries[e.Ref] {
				continue
			}
			if slices.ContainsFunc(s.ByRef(e.Ref), s.native) == withKey {
				add(e.Ref)
			}
		}
	}
	addTags(false)
	for _, e := range added {
		if !(strings.Contains(e.Ref, "@") && carries[e.Record]) {
			add(e.Record)
		}
	}
	for _, e := range added {
		add(e.ImageID.String())
	}
	addTags(true)
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

// keyLabels returns the keys on a record, and why a label cannot be read: it is damaged, or of a newer version.
func keyLabels(img images.Image) iter.Seq2[imagepin.Entry, error] {
	return func(yield func(imagepin.Entry, error) bool) {
		for name, value := range img.Labels {
			if !imagepin.IsKeyLabel(name) {
				continue
			}
			e, err := imagepin.DecodeKeyLabel(name, value)
			e.Record, e.RecordTarget = img.Name, img.Target
			if !yield(e, err) {
				return
			}
		}
	}
}

// decode reads the keys on a record. It logs and ignores labels that it cannot read.
func decode(ctx context.Context, img images.Image) (entries []imagepin.Entry) {
	for e, err := range keyLabels(img) {
		if err != nil {
			log.G(ctx).WithError(err).WithField("image", img.Name).Warn("ignoring unreadable key label")
			continue
		}
		entries = append(entries, e)
	}
	return entries
}
