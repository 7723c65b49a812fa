package apply

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config has the dependencies of an Applier. All fields are required.
type Config struct {
	State       State
	Images      Images
	Puller      Puller
	Remover     Remover
	Content     content.Store
	Leases      leases.Manager
	Snapshotter func(name string) snapshots.Snapshotter
	Runtimes    func() *runtimeplatform.Set
	Settings    func() Settings
	// Containers returns the running containers of the node.
	Containers func(ctx context.Context) ([]Container, error)
	// Sync makes images durable.
	Sync func(ctx context.Context, entries []imagepin.Entry) error
	// Notify is called after the lock of the node has changed.
	Notify func(ctx context.Context, r Result)
}

// Settings are the settings of a node that an Applier needs.
type Settings struct {
	// SandboxImage is the normalized reference of the sandbox image, or empty.
	SandboxImage string
	// DiscardLayers reports that layers are removed after they were unpacked.
	DiscardLayers bool
	// ContentDir is the directory of the content store, or empty if it is not known.
	ContentDir string
	// LocksDirectory and BundlesDirectory are the drop directories. They may be empty.
	LocksDirectory, BundlesDirectory string
}

// State stores the lock of the node. [applied.Store] implements it.
type State interface {
	Get() applied.State
	Err() error
	// Keep retains digests until the next Keep or Write.
	Keep(ctx context.Context, roots []digest.Digest) error
	// Repair writes the lock again if another tool has changed it.
	Repair(ctx context.Context) error
	// Write replaces the lock in one step.
	Write(ctx context.Context, next applied.State) error
}

// Images finds the images that are ready on the node. [store.Store] implements it.
type Images interface {
	Get(k imagepin.Key) (imagepin.Entry, bool)
	ByRoot(root digest.Digest) []imagepin.Entry
	Images() []store.Image
	// EndImported makes the imported keys of a digest of ref's repository pulled: they need a proof from then on.
	EndImported(ctx context.Context, ref reference.Named, root digest.Digest) error
}

// Puller makes images ready. [pull.Puller] implements it.
type Puller interface {
	MakeLocked(ctx context.Context, l pull.Locked) (pull.Pulled, error)
	// Verify calls the image verifiers.
	Verify(ctx context.Context, ref reference.Named, root ocispec.Descriptor) error
}

// Remover removes images.
type Remover interface {
	// RemoveKeys removes images that nothing uses, and collects their content.
	RemoveKeys(ctx context.Context, keys []imagepin.Key) error
}

// Applier applies locks to a node, one at a time. It is safe for concurrent use.
type Applier struct {
	config   Config
	turns    turns
	progress atomic.Pointer[Progress]
	failed   atomic.Pointer[Failure]
	drifted  atomic.Int64 // containers that run another digest than the lock, at the last look
	detached chan func(context.Context)
}

// Failure is the last apply that failed, if no later one has succeeded.
type Failure struct {
	At   time.Time
	Name string
	Err  error
}

// New returns an Applier. [Applier.Run] must run.
func New(c Config) *Applier {
	return &Applier{config: c, detached: make(chan func(context.Context))}
}

// Apply applies a lock: it verifies the lock and its bundle, makes its images ready, and switches all pins of the lock in one
// step. If it fails, or is killed before the switch, the node keeps the lock that it has. The images that are ready by then
// stay on the node as after a pull, unless the disk is full.
//
// It fails with ApplyInProgress, InvalidBundle, NotInBundle, NotEnoughSpace, NoMatchingPlatform, ImageVerificationFailed, and
// as [pull.Puller.MakeLocked] does.
func (a *Applier) Apply(ctx context.Context, r Request) (Result, error) {
	ctx, turn, err := a.begin(ctx, nil)
	if err != nil {
		return Result{}, err
	}
	defer turn.end()
	return a.applyAndNote(ctx, r)
}

// applyAndNote is apply for the caller of begin. It notes a failure for the status.
func (a *Applier) applyAndNote(ctx context.Context, r Request) (Result, error) {
	result, err := a.apply(ctx, r)
	if err != nil {
		if cause := context.Cause(ctx); isCanceled(cause) {
			err = cause
		}
		return result, a.noteFailure(r, err)
	}
	if !r.DryRun {
		a.failed.Store(nil)
	}
	return result, nil
}

func (a *Applier) apply(ctx context.Context, r Request) (Result, error) {
	if err := a.config.State.Err(); err != nil {
		return Result{}, unreadable(err)
	}
	id, err := r.Lock.Digest()
	if err != nil {
		return Result{}, err
	}
	if of := a.lockOf(id); of != nil {
		r.fromBundle = of.Bundle
	}
	r = a.withHandlers(r)
	report := a.reporter(r, id)
	if r.Bundle != nil {
		report(Progress{Phase: Verifying})
		if err := r.Bundle.Verify(ctx, func(done, total int64) { report(Progress{Phase: Verifying, Done: done, Total: total}) }); err != nil {
			return Result{}, err
		}
	}
	p, err := a.plan(ctx, r)
	if err != nil {
		return Result{}, err
	}
	if err := a.verify(ctx, r, p); err != nil {
		return Result{}, err
	}
	last := a.config.State.Get()
	result := Result{Changes: changes(last.Current, r.Lock), Images: len(p.jobs), Locked: len(r.Lock.Images), MadeReady: p.images(r.Lock), Handlers: r.Handlers}
	if r.DryRun {
		result.Lock = id
		return result, nil
	}
	ctx = bandwidth.WithLimit(ctx, r.BytesPerSecond)
	if err := a.prepare(ctx, r, p, report); err != nil {
		return Result{}, a.undo(ctx, p, err)
	}
	if err := a.config.Sync(ctx, a.imagesOf(r.Lock)); err != nil { // images that were ready may not be durable: other tools pulled them
		return Result{}, a.undo(ctx, p, fmt.Errorf("the images of the lock are not durable: %w", err))
	}
	failpoint.Reach("apply.ready")
	report(Progress{Phase: Switching, Done: int64(len(p.jobs)), Total: int64(len(p.jobs))})
	next := nextState(last, r, p.applied(r, id))
	if err := a.config.State.Write(ctx, next); err != nil {
		return Result{}, a.undo(ctx, p, err)
	}
	result.Lock, result.Previous = id, digestOf(next.Previous)
	log.G(ctx).WithField("lock", id).WithField("previous", digestOf(last.Current)).Info("lock is applied")
	a.config.Notify(ctx, result)
	if err := a.tag(ctx, next.Current); err != nil { // the pins decide, and Run tries again
		log.G(ctx).WithError(err).WithField("lock", id).Warn("a tag of the lock is not recorded, trying again later")
	}
	return result, nil
}

// imagesOf returns the images of a lock that are ready.
func (a *Applier) imagesOf(l *lock.Lock) (all []imagepin.Entry) {
	for _, i := range l.Images {
		all = append(all, a.config.Images.ByRoot(i.Ref.Digest())...)
	}
	return all
}

// cleanupTimeout bounds cleanup after the caller has gone.
const cleanupTimeout = 30 * time.Second

// nextState returns the state after a lock is applied. Applying the current lock again keeps the previous one.
func nextState(last applied.State, r Request, now *applied.Applied) applied.State {
	next := applied.State{Current: now, Previous: last.Current, Dropped: last.Dropped}
	if digestOf(last.Current) == now.Digest {
		next.Previous = last.Previous
	}
	if r.dropped != "" {
		next.Dropped = r.dropped
	}
	return next
}

func digestOf(a *applied.Applied) digest.Digest {
	if a == nil {
		return ""
	}
	return a.Digest
}

// reporter returns a function that notes progress for the status and the caller.
func (a *Applier) reporter(r Request, id digest.Digest) func(Progress) {
	return func(p Progress) {
		p.Lock = id
		a.progress.Store(&p)
		if r.Progress != nil {
			r.Progress(p)
		}
	}
}

// verify calls the image verifiers for each image, with the reference that it was locked for.
func (a *Applier) verify(ctx context.Context, r Request, p *plan) error {
	for _, i := range r.Lock.Images {
		root, ok := p.roots[i.Ref.Digest()]
		if !ok {
			continue // the registry has its descriptor, see prepare
		}
		if err := a.config.Puller.Verify(ctx, i.Name(), root); err != nil {
			return err
		}
	}
	return nil
}

// changes returns the references whose digest differs between the current lock and the next one.
func changes(current *applied.Applied, next *lock.Lock) []Change {
	all := make(map[string]*Change)
	of := func(ref string) *Change {
		if all[ref] == nil {
			all[ref] = &Change{Ref: ref}
		}
		return all[ref]
	}
	if current != nil {
		for _, i := range current.Lock.Images {
			of(i.Name().String()).Before = i.Ref.Digest()
		}
	}
	if next != nil {
		for _, i := range next.Images {
			of(i.Name().String()).After = i.Ref.Digest()
		}
	}
	var changed []Change
	for _, ref := range slices.Sorted(maps.Keys(all)) {
		if c := all[ref]; c.Before != c.After {
			changed = append(changed, *c)
		}
	}
	return changed
}

// Rollback applies the lock before the current one. The current one becomes the previous one. It cancels a running apply, also that of
// the drop directories, which are not applied again until their content changes. It fails with [imagepin.UnknownLock] (ErrNotFound)
// if there is no lock before, and as [Applier.Apply] does, except with ApplyInProgress.
func (a *Applier) Rollback(ctx context.Context, r Request) (Result, error) {
	if a.config.State.Get().Previous == nil {
		return Result{}, unknownLock(noPrevious) // and a running apply goes on
	}
	ctx, turn, err := a.begin(ctx, canceledBy("imagepin rollback"))
	if err != nil {
		return Result{}, err
	}
	defer turn.end()
	r.dropped = turn.dropped
	previous := a.config.State.Get().Previous
	if previous == nil {
		return Result{}, unknownLock(noPrevious)
	}
	r.Lock, r.Bundle, r.Name, r.Handlers, r.stored = previous.Lock, nil, previous.Name, previous.Handlers, previous
	return a.applyAndNote(ctx, r)
}

// Remove removes the lock of the node, and the one before it: tags follow their registries again, and content is not retained
// any more. With onlyPrevious it removes only the one before it. It fails with [imagepin.UnknownLock] (ErrNotFound) if there
// is none. It cancels a running apply, as [Applier.Rollback] does. A failure of the last apply is not reported any more, unless
// onlyPrevious is set.
func (a *Applier) Remove(ctx context.Context, onlyPrevious bool) (Result, error) {
	if err := a.checkRemove(onlyPrevious); err != nil {
		return Result{}, err // and a running apply goes on
	}
	ctx, turn, err := a.begin(ctx, canceledBy("imagepin lock rm"))
	if err != nil {
		return Result{}, err
	}
	defer turn.end()
	if err := a.checkRemove(onlyPrevious); err != nil {
		return Result{}, err
	}
	last := a.config.State.Get()
	next := applied.State{Dropped: cmp.Or(turn.dropped, last.Dropped)}
	if onlyPrevious {
		next.Current = last.Current
	}
	if err := a.config.State.Write(ctx, next); err != nil {
		return Result{}, err
	}
	result := Result{Lock: digestOf(next.Current)}
	if !onlyPrevious {
		result.Changes = changes(last.Current, nil)
		a.failed.Store(nil)
		log.G(ctx).WithField("lock", digestOf(last.Current)).Info("lock is removed")
		a.config.Notify(ctx, result)
	}
	return result, nil
}

// checkRemove fails with [imagepin.UnknownLock] if there is nothing to remove.
func (a *Applier) checkRemove(onlyPrevious bool) error {
	switch last := a.config.State.Get(); {
	case onlyPrevious && last.Previous == nil:
		return unknownLock(noPrevious)
	case !onlyPrevious && last.Current == nil && a.config.State.Err() == nil:
		return unknownLock("this node has no lock")
	}
	return nil
}

const noPrevious = "this node has no lock before the current one"

func unknownLock(message string) *imagepin.Error {
	return &imagepin.Error{
		Reason: imagepin.UnknownLock, Class: errdefs.ErrNotFound, Message: message,
		Hint: "To see the locks of this node, run: imagepin lock status",
	}
}

func unreadable(err error) error {
	return &imagepin.Error{
		Reason: imagepin.InvalidLock, Class: errdefs.ErrFailedPrecondition, Err: err, Message: "the lock of this node cannot be read",
		Hint: "Install the release that wrote it, or remove it: imagepin lock rm",
	}
}
