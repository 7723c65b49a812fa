package reconcile

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"

	eventsapi "github.com/containerd/containerd/api/events"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Subscriber is containerd's event service.
type Subscriber interface {
	Subscribe(ctx context.Context, filters ...string) (ch <-chan *events.Envelope, errs <-chan error)
}

// topics are the events after which labels, content and snapshots can disagree. Garbage collection of content publishes
// no event, but the deletion of its record does so before.
var topics = []string{
	`topic~="^/images/"`, `topic=="/snapshot/commit"`, `topic=="/snapshot/remove"`, `topic=="/content/delete"`,
}

// Config configures a Reconciler.
type Config struct {
	Store    *store.Store
	Records  images.Store
	Checker  *health.Checker
	Maker    Maker
	Puller   Puller
	Retained Retained
	Content  content.Store
	Leases   leases.Manager
	// Boots may be nil: then nothing of an earlier boot is left. Collect runs garbage collection and waits for it.
	Boots   Boots
	Collect func(context.Context) error
	Events  Subscriber
	Locks   *pull.Locks
	// Replacer is for damaged snapshots that containers stand on. It may be nil: the key then stays damaged until they are removed.
	Replacer Replacer
	// Boot may be nil: no image is then compared at the start.
	Boot Boot
	// Runtimes returns the runtime handlers that are currently configured.
	Runtimes func() *runtimeplatform.Set
	// Pinned reports whether a pin means or retains a digest. It may be nil: no pin does.
	Pinned func(root digest.Digest) bool
	// Namespace is the containerd namespace of the CRI's images. Events of other namespaces are ignored.
	Namespace string
}

// Replacer replaces the files of damaged snapshots that others stand on. [replace.Replacer] implements it.
type Replacer interface {
	// Replace unpacks the layers of an image again, from the one with the chain ID from up, makes them durable, and replaces the files
	// of its snapshots. It fails with [imagepin.SnapshotInUse] (ErrFailedPrecondition) while something runs on them, with
	// [imagepin.SnapshotNotReplaceable] (ErrNotImplemented) where that cannot be done, and with ErrNotFound or
	// [imagepin.ContentCorrupt] if a layer is missing or damaged.
	Replace(ctx context.Context, e imagepin.Entry, from digest.Digest) error
}

// Maker makes images ready from local content. [pull.Maker] implements it.
type Maker interface {
	// WithLease runs fn with a lease that holds the content and snapshots of entries. If any of these is gone, it does
	// not run fn, and returns nil.
	WithLease(ctx context.Context, entries []imagepin.Entry, fn func(context.Context) error) error
	// Unpack unpacks an image, makes it durable, and runs record with its mark while a lease holds it. It returns ErrNotFound if a
	// layer is missing.
	Unpack(ctx context.Context, e imagepin.Entry, record func(context.Context, imagepin.Entry) error) error
}

// Puller makes images ready from local content or from their registries. [pull.Puller] implements it.
type Puller interface {
	Repair(ctx context.Context, e imagepin.Entry) (pull.Outcome, error)
	// RepairBlob fetches a blob of an image again if its file is damaged.
	RepairBlob(ctx context.Context, e imagepin.Entry, d digest.Digest) error
}

// Retained is the content that pins retain. [retain.Retainer] implements it.
type Retained interface {
	// Sync updates the leases of digests after pins or images have changed. SyncAll does so for all digests.
	Sync(ctx context.Context, roots ...digest.Digest) error
	SyncAll(ctx context.Context) error
}

// Reconciler keeps the index up to date with containerd.
type Reconciler struct {
	config    *Config
	adopter   *adopter
	unkeyed   *unkeyed
	repairs   *repairs
	orphans   *orphans
	leftovers *leftovers
	// served is whether Run has called ready. Only Run uses it.
	served bool
	// unmarked are compared with their layers before they are ready.
	unmarked *unmarked
	// unanswered are the snapshots about which their snapshotters have to be asked again.
	unanswered *unanswered
	// last is the result of the last list of images; nil before.
	last atomic.Pointer[Listed]
	// work are calls that other goroutines pass to Run's, because these use the adopter or unkeyed.
	work chan func(context.Context)
}

// New returns a reconciler.
func New(c Config) *Reconciler {
	r := &Reconciler{
		config: &c, repairs: newRepairs(repairer{config: &c, snapshots: new(keyed.Mutex)}), work: make(chan func(context.Context)),
		unkeyed: &unkeyed{config: &c, ids: make(map[string]digest.Digest)},
		orphans: &orphans{config: &c}, leftovers: newLeftovers(&c),
	}
	r.unmarked = &unmarked{config: &c, damaged: func(ctx context.Context, losses ...health.Loss) { r.repairs.add(ctx, losses...) }, compared: make(map[store.Snapshot]bool), unverified: make(map[imagepin.Key]string)}
	r.unanswered = newUnanswered(c.Store.HasSnapshot, r.passAnswered)
	r.adopter = &adopter{config: &c, repairs: r.repairs, unanswered: r.unanswered, unmarked: r.unmarked, awaitingUnpack: make(map[string][]store.Snapshot)}
	return r
}

// Run builds the index, adopts the images of other tools, calls ready, and handles events until ctx
// ends. It subscribes to events before it lists images, so that it misses no change. It returns an error if the event
// stream fails, and can then be called again, but not concurrently.
func (r *Reconciler) Run(ctx context.Context, ready func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	end := r.repairs.begin(ctx)
	defer func() {
		cancel()
		end()
		r.repairs.wait()
		r.unanswered.wait()
	}()
	changes, failed := r.config.Events.Subscribe(ctx, topics...)
	first, err := r.leftovers.remove(ctx)
	if err != nil {
		return err
	}
	r.repairs.owned.Go(func() { r.leftovers.expire(ctx) })
	found, err := r.load(ctx)
	if err != nil {
		return err
	}
	r.suspect(found.have)
	if first {
		err = r.adopter.adoptAll(ctx, found.unkeyed, found.have)
	} else {
		err = r.adopter.adoptEach(ctx, found.unkeyed, found.have)
	}
	if err != nil {
		return err
	}
	for _, img := range found.unkeyed {
		r.unkeyed.note(ctx, img)
	}
	if err := r.config.Retained.SyncAll(ctx); err != nil {
		return err
	}
	r.last.Store(&Listed{At: time.Now(), Took: time.Since(began), Lost: len(found.losses)})
	hidden, err := r.unmarked.hide(ctx)
	if err != nil {
		return err
	}
	r.unmarked.add(slices.Concat(found.unmarked, hidden)...)
	r.suspect(found.have)
	r.served = true
	ready()
	r.repairs.owned.Go(func() { r.unmarked.run(ctx) })
	r.repairs.owned.Go(func() {
		release := func(ctx context.Context) error {
			return r.config.Store.ReleaseOrphans(ctx, found.have.Unpacked(), found.lost...)
		}
		if r.leftovers.isGone() {
			if err := release(ctx); err != nil && ctx.Err() == nil {
				log.G(ctx).WithError(err).Error("cannot release snapshots that no key needs")
			}
		}
		r.leftovers.collect(ctx, release)
		warnAboutLayers(ctx, r.config.Content, found.have)
	})
	markUnused(ctx, r.config.Store) // before the repairs: an image that they move is ready later than its key was unused
	r.repairs.add(ctx, found.losses...)
	for {
		select { // events that have arrived come before other work
		case e := <-changes:
			r.handleEvent(ctx, e)
			continue
		default:
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("containerd event stream: %w", err)
		case e := <-changes:
			r.handleEvent(ctx, e)
		case do := <-r.work:
			do(ctx)
		}
	}
}

// suspect makes the snapshots suspects that no key in the index needs. Those that are made when calls are served are none.
func (r *Reconciler) suspect(have *health.Inventory) {
	if r.served {
		return
	}
	var ready []imagepin.Entry
	for _, img := range r.config.Store.Images() {
		ready = append(ready, img.Entries...)
	}
	r.config.Checker.SuspectAllBut(have, ready)
}

// handleEvent reconciles the current state of the object of an event. It logs errors, and the object is checked again
// with its next event or at the next start.
func (r *Reconciler) handleEvent(ctx context.Context, e *events.Envelope) {
	if e == nil || e.Namespace != r.config.Namespace {
		return
	}
	defer recoverPanic(ctx, e.Topic)
	v, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		log.G(ctx).WithError(err).WithField("topic", e.Topic).Warn("cannot decode containerd event")
		return
	}
	about := ""
	switch event := v.(type) {
	case *eventsapi.ImageCreate:
		about, err = event.Name, r.syncRecord(ctx, event.Name)
	case *eventsapi.ImageUpdate:
		about, err = event.Name, r.syncRecord(ctx, event.Name)
	case *eventsapi.ImageDelete:
		delete(r.adopter.awaitingUnpack, event.Name)
		about, err = event.Name, r.syncRecord(ctx, event.Name)
	case *eventsapi.SnapshotCommit:
		about, err = event.Name, r.adopter.snapshotCommitted(ctx, store.Snapshot{Snapshotter: event.Snapshotter, ChainID: digest.Digest(event.Name)})
	case *eventsapi.SnapshotRemove:
		about, err = event.Key, r.snapshotGone(ctx, store.Snapshot{Snapshotter: event.Snapshotter, ChainID: digest.Digest(event.Key)})
	case *eventsapi.ContentDelete:
		about, err = event.Digest, r.blobGone(ctx, digest.Digest(event.Digest))
	}
	logFailure(ctx, e.Topic, about, err)
}

// NoteUnkeyed lists the records that belong to no key, and notes or adopts their images, as a start does. Their events may
// have come while their images had keys, or lacked a part. Run does this after it has handled the events that have arrived.
func (r *Reconciler) NoteUnkeyed(ctx context.Context) error {
	noted := make(chan error, 1)
	select {
	case r.work <- func(ctx context.Context) {
		defer close(noted)
		defer recoverPanic(ctx, "list")
		noted <- r.syncUnkeyed(ctx)
	}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-noted:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// passAnswered makes Run reconcile a snapshot about which its snapshotter has answered.
func (r *Reconciler) passAnswered(ctx context.Context, s store.Snapshot) {
	const topic = "snapshotter responds"
	select {
	case r.work <- func(ctx context.Context) {
		defer recoverPanic(ctx, topic)
		logFailure(ctx, topic, s.ChainID.String(), errors.Join(r.snapshotGone(ctx, s), r.adopter.snapshotCommitted(ctx, s)))
	}:
	case <-ctx.Done():
	}
}

func recoverPanic(ctx context.Context, topic string) {
	if p := recover(); p != nil {
		log.G(ctx).WithField("topic", topic).Errorf("panic while reconciling: %v\n%s", p, debug.Stack())
	}
}

func logFailure(ctx context.Context, topic, about string, err error) {
	if err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).WithField("topic", topic).WithField("about", about).Error("cannot reconcile change by another tool")
	}
}

// syncUnkeyed updates the keys of the records that belong to no key, or adopts those that are unpacked. It does not unpack
// any: their events have done that, unless a layer is missing.
func (r *Reconciler) syncUnkeyed(ctx context.Context) error {
	unkeyed, err := r.config.Store.Unaccounted(ctx)
	if err != nil {
		return err
	}
	for _, img := range unkeyed {
		logFailure(ctx, "list", img.Name, r.adoptUnpacked(ctx, img.Name))
	}
	return ctx.Err()
}

func (r *Reconciler) adoptUnpacked(ctx context.Context, name string) error {
	unknown, err := r.sync(ctx, name)
	if unknown == nil || err != nil {
		return err
	}
	has := r.unanswered.onNode(ctx)
	if r.adopter.unadopted(ctx, *unknown, has) != "" {
		return nil // imagepin check reports why
	}
	return r.adopter.adoptNow(ctx, *unknown, has, r.unmarked.late)
}

// syncRecord updates the keys of an image record, or adopts it.
func (r *Reconciler) syncRecord(ctx context.Context, name string) error {
	unknown, err := r.sync(ctx, name)
	if unknown == nil || err != nil {
		return err
	}
	return r.adopter.adoptNow(ctx, *unknown, r.unanswered.onNode(ctx), r.unmarked.late)
}

// sync updates the keys of an image record. It returns the record, and notes its image, if it has no key.
func (r *Reconciler) sync(ctx context.Context, name string) (*images.Image, error) {
	unknown, err := r.config.Store.Sync(ctx, name)
	if err != nil {
		return nil, err
	}
	if unknown == nil {
		delete(r.unkeyed.ids, name) // its record is gone or has a key
		return nil, r.unkeyed.sync(ctx, digest.Digest(name))
	}
	r.unkeyed.note(ctx, *unknown)
	return unknown, nil
}
