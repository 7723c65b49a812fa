package reconcile

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"

	eventsapi "github.com/containerd/containerd/api/events"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Subscriber is containerd's event service.
type Subscriber interface {
	Subscribe(ctx context.Context, filters ...string) (ch <-chan *events.Envelope, errs <-chan error)
}

// topics are the events that can make labels, content and snapshots disagree.
// There is none of content that is collected: a record that goes comes first.
var topics = []string{
	`topic~="^/images/"`, `topic=="/snapshot/commit"`, `topic=="/snapshot/remove"`, `topic=="/content/delete"`,
}

// Config is what a Reconciler works with.
type Config struct {
	Store    Store
	Records  images.Store
	Checker  *health.Checker
	Maker    Maker
	Puller   Puller
	Retained Retained
	Content  content.Store
	Leases   leases.Manager
	Events   Subscriber
	// Runtimes returns the runtime handlers that are configured now.
	Runtimes func() *runtimeplatform.Set
	// Namespace is that of the CRI's images; events of others are ignored.
	Namespace string
}

// Store is the images of the node. [store.Store] is one.
type Store interface {
	Index
	Repairs
	// Load builds the index from what is recorded.
	Load(ctx context.Context, look store.Look) (*store.Loaded, error)
	// Sync follows a record that may have changed. It returns one that no key accounts for.
	Sync(ctx context.Context, name string) (*images.Image, error)
	// Adopt records the keys of images of other tools.
	Adopt(ctx context.Context, adoptions ...store.Adoption) (store.Change, error)
	NoteUntagged(u store.Untagged)
	// Unsee notes that upstream may not know a record as it is.
	Unsee(img images.Image, entries ...imagepin.Entry)
}

// Index looks at what is recorded and at what there is.
type Index interface {
	Get(k imagepin.Key) (imagepin.Entry, bool)
	// Explained reports whether the keys in the index account for a record.
	Accounted(img images.Image) bool
	// Adopted reports whether another tool brought the image of a reference, and a target may yet get it.
	Adopted(ref string) bool
	// Unclaimed reports whether no key needs an image that is kept unpacked.
	Unclaimed(u store.Unpacked) bool
	HasContent(ctx context.Context, e imagepin.Entry) (bool, error)
	HasSnapshot(ctx context.Context, snapshotter string, chainID digest.Digest) (bool, error)
}

// Repairs hides and repairs keys.
type Repairs interface {
	// HideBlob and HideSnapshot take the keys that need something that is gone out of the index.
	HideBlob(ctx context.Context, d digest.Digest) ([]imagepin.Entry, error)
	HideSnapshot(ctx context.Context, snapshotter, name string) ([]imagepin.Entry, error)
	// Restore records a key that was made ready again, if the record called witness still means it.
	PutIf(ctx context.Context, e imagepin.Entry, witness string) (restored bool, _ error)
	// Realign writes the records of an entry again.
	RepairRecords(ctx context.Context, e imagepin.Entry) error
	// Drop takes a key off its record that is not in the index, and Remove one that is.
	Drop(ctx context.Context, e imagepin.Entry) error
	Remove(ctx context.Context, keys ...imagepin.Key) (store.Change, error)
	// ReleaseOrphans has images not kept unpacked where no key needs them.
	ReleaseOrphans(ctx context.Context, all []store.Unpacked, lost ...imagepin.Entry) error
}

// Maker makes images ready from what is on the node. [pull.Maker] does.
type Maker interface {
	// Hold runs fn under a lease that holds what entries need. Where a part of that is gone fn is not run, and nothing
	// fails.
	WithLease(ctx context.Context, entries []imagepin.Entry, fn func(context.Context) error) error
	// Unpack unpacks an image and runs record while a lease holds it. It fails with ErrNotFound where a layer is not here.
	Unpack(ctx context.Context, e imagepin.Entry, record func(context.Context) error) error
	// RepairBlob fetches a blob of an image again where its file is damaged.
	RepairBlob(ctx context.Context, e imagepin.Entry, d digest.Digest) error
}

// Puller makes images ready, also from their registries. [pull.Puller] does.
type Puller interface {
	Repair(ctx context.Context, e imagepin.Entry) (pull.Outcome, error)
}

// Retained is the content that pins retain. [retain.Retainer] is one.
type Retained interface {
	// Sync brings what is retained of digests into line with pins and images, and SyncAll of all digests.
	Sync(ctx context.Context, roots ...digest.Digest) error
	SyncAll(ctx context.Context) error
}

// Reconciler keeps the index in step with containerd.
type Reconciler struct {
	Config
	started bool
	// awaited are the snapshots that images of other tools have not been
	// unpacked to yet, by record.
	awaited map[string][]place
	repairs *repairs
}

// place is where an image of another tool may yet be unpacked.
type place struct {
	snapshotter string
	chainID     string
}

// New makes a reconciler.
func New(c Config) *Reconciler { return &Reconciler{Config: c, awaited: make(map[string][]place)} }

// Run builds the index and calls loaded, adopts what other tools have put on the
// node and calls ready, and follows their changes until ctx ends. It subscribes before it
// lists, so that nothing falls between. It is run again, one after the other,
// where it lost track.
func (r *Reconciler) Run(ctx context.Context, loaded, ready func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	r.repairs = newRepairs(r)
	defer func() {
		cancel()
		r.repairs.wait()
	}()
	changes, failed := r.Events.Subscribe(ctx, topics...)
	first := !r.started
	if first {
		// Later, there are the leases of calls that are under way.
		if err := lease.DeleteLeftovers(ctx, r.Leases); err != nil {
			return err
		}
		r.started = true
	}
	found, err := r.load(ctx)
	if err != nil {
		return err
	}
	loaded()
	if first {
		err = r.adoptAll(ctx, found.unaccounted, found.have)
	} else {
		err = r.adoptEach(ctx, found.unaccounted)
	}
	if err != nil {
		return err
	}
	for _, img := range found.unaccounted {
		r.noteUntagged(ctx, img)
	}
	if err := r.Retained.SyncAll(ctx); err != nil {
		return err
	}
	ready()
	r.repairs.owned.Go(func() {
		if err := r.Store.ReleaseOrphans(ctx, found.have.Unpacked(), found.lost...); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Error("cannot release snapshots that no key needs")
		}
		warnOfLayers(ctx, r.Content, found.have)
	})
	r.repairs.add(ctx, found.losses...)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("follow containerd's events: %w", err)
		case e := <-changes:
			if e != nil && e.Namespace == r.Namespace {
				r.notice(ctx, e)
			}
		}
	}
}

// notice looks at what an event is about, as it is now. It does not fail: what
// cannot be mended is logged, and looked at again with the next change or start.
func (r *Reconciler) notice(ctx context.Context, e *events.Envelope) {
	defer func() {
		if p := recover(); p != nil {
			log.G(ctx).WithField("topic", e.Topic).Errorf("panic while reconciling: %v\n%s", p, debug.Stack())
		}
	}()
	v, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		log.G(ctx).WithError(err).WithField("topic", e.Topic).Warn("cannot read an event of containerd's")
		return
	}
	about := ""
	switch event := v.(type) {
	case *eventsapi.ImageCreate:
		about, err = event.Name, r.record(ctx, event.Name)
	case *eventsapi.ImageUpdate:
		about, err = event.Name, r.record(ctx, event.Name)
	case *eventsapi.ImageDelete:
		delete(r.awaited, event.Name)
		about, err = event.Name, r.record(ctx, event.Name)
	case *eventsapi.SnapshotCommit:
		about, err = event.Name, r.committed(ctx, place{event.Snapshotter, event.Name})
	case *eventsapi.SnapshotRemove:
		about, err = event.Key, r.snapshotGone(ctx, event.Snapshotter, event.Key)
	case *eventsapi.ContentDelete:
		about, err = event.Digest, r.blobGone(ctx, digest.Digest(event.Digest))
	}
	if err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).WithField("topic", e.Topic).WithField("about", about).Error("cannot reconcile what another tool has changed")
	}
}

// record looks at one image record.
func (r *Reconciler) record(ctx context.Context, name string) error {
	unknown, err := r.Store.Sync(ctx, name)
	if err != nil || unknown == nil {
		return err
	}
	r.noteUntagged(ctx, *unknown)
	return r.adoptNow(ctx, *unknown)
}

// committed looks at the images of other tools that a snapshot may be the top
// of: ctr unpacks an image after it has made its record.
func (r *Reconciler) committed(ctx context.Context, p place) error {
	for _, name := range slices.Sorted(maps.Keys(r.awaited)) {
		if !slices.Contains(r.awaited[name], p) {
			continue
		}
		img, err := r.Records.Get(ctx, name)
		if errdefs.IsNotFound(err) {
			delete(r.awaited, name)
			continue
		}
		if err != nil {
			return err
		}
		if err := r.adoptNow(ctx, img); err != nil {
			return err
		}
	}
	return nil
}
