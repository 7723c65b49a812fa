package pull

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config is what a [Maker] works with. All fields are required.
type Config struct {
	Content  content.Store
	Leases   leases.Manager
	Images   Images
	Pins     Pins
	Proofs   decide.Proofs
	Sessions Sessions
	Retained Retained
	Upstream Upstream
	Garbage  Garbage
	Locks    *Locks
	// Settings returns the settings of a pull that begins now.
	Settings func() *Settings
	// Runtimes returns the runtime handlers of the node.
	Runtimes func() *runtimeplatform.Set
}

// Images are the images of the node. [store.Store] is one.
type Images interface {
	Index
	Records
	// Replacing notes that a blob is deleted and written again; done is called when it is there.
	Replacing(d digest.Digest) (done func(context.Context) error)
}

// Index finds the images that are ready.
type Index interface {
	Get(k imagepin.Key) (imagepin.Entry, bool)
	ByRef(ref string) []imagepin.Entry
	ByID(id digest.Digest) []imagepin.Entry
}

// Records records which images are ready.
type Records interface {
	// AddToLease makes the lease in ctx hold what entries need. It fails with ErrNotFound where a part is gone.
	AddToLease(ctx context.Context, entries ...imagepin.Entry) error
	Put(ctx context.Context, proof string, entries ...imagepin.Entry) (store.Change, error)
	// Recorded reports whether Put has nothing to write.
	Recorded(proof string, entries ...imagepin.Entry) bool
	// ReleaseUnpacked has an image's configuration not keep a snapshot any more, unless a key needs it.
	ReleaseUnpacked(ctx context.Context, id digest.Digest, snapshotter string) error
	// Unseen returns the records of an entry that upstream may not know yet, and Seen notes that it does.
	Unseen(e imagepin.Entry) []string
	Seen(names ...string)
}

// Pins has the part of [decide.Decider] that a pull needs after the decision.
type Pins interface {
	CheckPin(v decide.Verdict) error
	Reserve(v decide.Verdict, image imagepin.Entry) (release func(), _ error)
	PinFirstUse(ctx context.Context, v decide.Verdict) (decide.Verdict, error)
	MovesTag(v decide.Verdict) bool
	Gone(ctx context.Context, v decide.Verdict, target string, err error) error
}

// Sessions opens sessions with registries. [resolve.Resolver] does.
type Sessions interface {
	Session(ref reference.Named, c resolve.Credential) *resolve.Session
}

// Retained is the content that pins retain. [retain.Retainer] is one.
type Retained interface {
	// Sync brings what is retained of digests into line with pins and images.
	Sync(ctx context.Context, roots ...digest.Digest) error
	// Synced reports whether there is nothing to do for a digest.
	Synced(root digest.Digest) bool
}

// Upstream is containerd's own CRI service.
type Upstream interface {
	// WaitVisible waits until upstream knows an image ID under every name, as long as it is wanted under that name. It
	// fails with [imagepin.UpstreamNotSynced].
	WaitVisible(ctx context.Context, id digest.Digest, names []string, wanted func(name string) bool) error
}

// Garbage collects what nothing holds.
type Garbage interface {
	Collect(ctx context.Context) error
	// CollectLater does not wait for the collection.
	CollectLater()
}

// Maker pulls and unpacks images, once it is decided which digest a reference means, and records them. It is safe for
// concurrent use.
type Maker struct {
	c        Config
	unpacker *unpacker
}

// New returns a maker.
func New(c Config) *Maker { return &Maker{c: c, unpacker: newUnpacker(c)} }

// Job is an image to make ready.
type Job struct {
	decide.Verdict
	Runtime runtimeplatform.Runtime
	// Progress is notified of how far the pull is; nil is nobody.
	Progress transfer.ProgressFunc
	// Force makes the image also where it is recorded as ready.
	Force bool

	verified bool // by the image verifiers
	retry    bool // an earlier try has found the image ready, or made it
}

// byDigest is the reference of the job's root.
func (j Job) byDigest() (reference.Canonical, error) {
	return reference.WithDigest(reference.TrimNamed(j.Ref), j.Root.Digest)
}

// maxTries is how often an image is made because something that it needs was removed, or its reference was pinned, in
// between.
const maxTries = 5

// Make fetches and unpacks the image of a verdict for a runtime, as far as it is not ready, records it, and returns once
// containerd's CRI service knows it.
//
// Errors are [imagepin.Error]: ImageVerificationFailed (ErrPermissionDenied), NoMatchingPlatform and PinnedDigestGone
// (ErrNotFound), ContentCorrupt (ErrFailedPrecondition), ContentDamaged (ErrDataLoss), PullStalled
// (context.DeadlineExceeded), RetainLimitReached and PinLimitReached (ErrResourceExhausted), UpstreamNotSynced
// (ErrUnavailable) and CannotPullImage (the class of its cause).
func (m *Maker) Make(ctx context.Context, j Job) (entry imagepin.Entry, outcome Outcome, err error) {
	err = traced(ctx, "ready", func(ctx context.Context) error {
		entry, outcome, err = m.tryMake(ctx, j)
		if err != nil {
			outcome = failure(ctx)
		}
		tracing.SpanFromContext(ctx).SetAttributes(tracing.Attribute("done", string(outcome)))
		return err
	}, tracing.WithAttribute("image.ref", j.Ref.String()), tracing.WithAttribute("image.target", j.Runtime.Target.String()),
		tracing.WithAttribute("image.digest", j.Root.Digest.String()))
	return entry, outcome, err
}

// tryMake makes the image of a job, again where the node has changed meanwhile.
func (m *Maker) tryMake(ctx context.Context, j Job) (entry imagepin.Entry, outcome Outcome, err error) {
	for range maxTries {
		entry, outcome, err = m.makeOnce(ctx, j)
		var moved *decide.MovedError
		switch {
		case errors.As(err, &moved):
			j.Verdict, j.verified = moved.Verdict, false
		case errors.Is(err, errRemoved):
			j.retry = true // not Force, which trusts what is on the node
		default:
			return entry, outcome, err
		}
	}
	m.collect(ctx) // no further try needs what the last one has left
	return entry, outcome, complete(err, imagepin.CannotPullImage, j.Ref.String(), j.Runtime.Target)
}

// triedAgain reports whether a job that err has ended is tried again. What it has left is not collected before that: it
// is most of what the next try needs.
func triedAgain(err error) bool {
	var moved *decide.MovedError
	return errors.As(err, &moved) || errors.Is(err, errRemoved)
}

// makeOnce verifies, makes, records and shows the image of a job. Nothing removes its digest meanwhile.
func (m *Maker) makeOnce(ctx context.Context, j Job) (entry imagepin.Entry, outcome Outcome, _ error) {
	if !j.verified {
		if err := verify(ctx, m.c.Settings().Verifiers, j.Ref.String(), j.Root); err != nil {
			return entry, "", complete(err, imagepin.ImageVerificationFailed, j.Ref.String(), j.Runtime.Target)
		}
	}
	byDigest, err := j.byDigest()
	if err != nil {
		return entry, "", err
	}
	unlock, err := m.c.Locks.ForUse(ctx, byDigest.String())
	if err != nil {
		return entry, "", err
	}
	defer unlock()
	if err := m.c.Pins.CheckPin(j.Verdict); err != nil {
		return entry, "", err
	}
	start := time.Now()
	entry, wrote, outcome, err := m.makeAndRecord(ctx, j)
	if err != nil {
		unlock() // a collection waits for every snapshotter
		if !triedAgain(err) {
			m.collect(ctx)
		}
		return imagepin.Entry{}, "", m.failed(ctx, j, err)
	}
	if err := m.Show(ctx, entry); err != nil {
		return imagepin.Entry{}, "", m.failed(ctx, j, err)
	}
	if wrote {
		log.G(ctx).WithFields(log.Fields{
			"ref": entry.Ref, "target": entry.Target.String(), "digest": entry.Root.Digest,
			"manifest": entry.Manifest, "image": entry.ImageID, "host": entry.Host, "took": time.Since(start),
		}).Info("image is ready")
	}
	return entry, outcome, nil
}

// makeAndRecord makes what the job's key needs, as far as it is not ready, and records the key.
func (m *Maker) makeAndRecord(ctx context.Context, j Job) (entry imagepin.Entry, wrote bool, outcome Outcome, err error) {
	known, ok := m.ready(j.Ref, j.Root.Digest, j.Runtime.Target)
	if !ok || j.Force || j.retry {
		err = lease.With(ctx, m.c.Leases, lease.Pull, func(ctx context.Context) (err error) {
			entry, wrote, outcome, err = m.fetchAndRecord(ctx, j)
			return err
		})
		return entry, wrote, outcome, err
	}
	if j.Session != nil {
		known.Source = imagepin.SourcePull // whoever brought it: its registry has given it now
	}
	if entry, ok = m.recorded(j, known); ok {
		return entry, false, UpToDate, nil
	}
	err = lease.With(ctx, m.c.Leases, lease.Pull, func(ctx context.Context) error {
		release, err := m.usePin(ctx, &j, known)
		if err != nil {
			return err
		}
		defer release()
		entry, wrote, err = m.record(ctx, j, known)
		return err
	})
	if outcome = UpToDate; wrote {
		outcome = Recorded
	}
	return entry, wrote, outcome, err
}

// fetchAndRecord makes and records the key of a job under the lease in ctx.
func (m *Maker) fetchAndRecord(ctx context.Context, j Job) (entry imagepin.Entry, wrote bool, outcome Outcome, err error) {
	fetching, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	img, err := m.unpacker.choose(fetching, j, cancel)
	if err != nil {
		return entry, false, "", asRemoved(because(fetching, err))
	}
	defer func() {
		if err != nil {
			m.letGo(ctx, img)
		}
	}()
	release, err := m.usePin(ctx, &j, img.measured)
	if err != nil {
		return entry, false, "", err
	}
	defer release()
	made, err := m.unpacker.unpack(fetching, img)
	if err != nil {
		return entry, false, "", asRemoved(because(fetching, err))
	}
	failpoint.Reach("pull.made")
	entry, wrote, err = m.record(ctx, j, made)
	if outcome = Unpacked; img.source.opened.Load() {
		outcome = Fetched
	}
	return entry, wrote, outcome, err
}

// letGo has the configuration of an image that could not be recorded not keep the snapshot that unpacking has made: a
// key of another target may keep the configuration.
func (m *Maker) letGo(ctx context.Context, img *chosen) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	id, err := m.unpacker.imageID(ctx, img.manifest())
	if err != nil {
		return // it was not fetched
	}
	if err := m.c.Images.ReleaseUnpacked(ctx, id, img.job.Runtime.Target.Snapshotter); err != nil {
		log.G(ctx).WithError(err).WithField("ref", img.job.Ref.String()).Warn("what a failed pull has unpacked stays until the next start")
	}
}

// usePin reserves room for what the pin of a job retains, until release is called, and makes the pin where this is the
// first use of the reference. image is what is known of the image, see [decide.Decider.Reserve]. It fails as that does,
// and as [decide.Decider.PinFirstUse] does.
func (m *Maker) usePin(ctx context.Context, j *Job, image imagepin.Entry) (release func(), err error) {
	if release, err = m.c.Pins.Reserve(j.Verdict, image); err != nil {
		return nil, err
	}
	if j.Verdict, err = m.c.Pins.PinFirstUse(ctx, j.Verdict); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// ready finds a digest of ref's repository that is ready for a target, under whatever reference.
func (m *Maker) ready(ref reference.Named, root digest.Digest, t runtimeplatform.Target) (imagepin.Entry, bool) {
	if e, ok := m.c.Images.Get(imagepin.Key{Ref: ref.String(), Target: t}); ok && e.Root.Digest == root {
		return e, true
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root)
	if err != nil {
		return imagepin.Entry{}, false
	}
	return m.c.Images.Get(imagepin.Key{Ref: byDigest.String(), Target: t})
}

// Show waits until containerd's CRI service knows an image as it is recorded, whoever has recorded it. It asks nothing
// where that is known. It fails with [imagepin.UpstreamNotSynced] (ErrUnavailable).
func (m *Maker) Show(ctx context.Context, e imagepin.Entry) error {
	names := m.c.Images.Unseen(e)
	if len(names) == 0 {
		return nil
	}
	unseen := func(name string) bool { return slices.Contains(m.c.Images.Unseen(e), name) }
	return traced(ctx, "visible", func(ctx context.Context) error {
		if err := m.c.Upstream.WaitVisible(ctx, e.ImageID, names, unseen); err != nil {
			return err
		}
		m.c.Images.Seen(names...)
		failpoint.Reach("pull.visible")
		return nil
	})
}

// failed returns the error of a job that err has ended.
func (m *Maker) failed(ctx context.Context, j Job, err error) error {
	switch {
	case triedAgain(err):
		return err
	case j.Pin != nil && gone(err):
		return m.c.Pins.Gone(ctx, j.Verdict, j.Runtime.Target.String(), err)
	}
	return complete(err, imagepin.CannotPullImage, j.Ref.String(), j.Runtime.Target)
}

// gone reports whether content that a pull needs is not to be had.
func gone(err error) bool {
	var e *imagepin.Error
	return errdefs.IsNotFound(err) && atRegistry(err) && !(errors.As(err, &e) && e.Reason == imagepin.NoMatchingPlatform)
}

const (
	// cleanupTimeout bounds what is done after the caller has gone.
	cleanupTimeout = 30 * time.Second
	// collectWait bounds how long a pull that has failed waits for what it has left to be collected.
	collectWait = 2 * time.Second
)

// withLease runs fn under a lease that holds everything fn fetches and unpacks. Where fn fails, what it left is collected
// later: the caller may hold a lock.
func (m *Maker) withLease(ctx context.Context, fn func(context.Context) error) error {
	err := lease.With(ctx, m.c.Leases, lease.Pull, fn)
	if err != nil {
		m.c.Garbage.CollectLater()
	}
	return err
}

// collect collects garbage, and waits a moment for it: a collection takes as long as the slowest snapshotter. The caller
// holds no lock of its own; CreateContainer and RunPodSandbox hold the digest for use meanwhile, which keeps it from
// removal.
func (m *Maker) collect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), collectWait)
	defer cancel()
	if err := m.c.Garbage.Collect(ctx); err != nil {
		m.c.Garbage.CollectLater()
	}
}
