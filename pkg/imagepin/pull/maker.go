package pull

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config has the dependencies of a [Maker]. All fields are required, except Snapshots, RepairSnapshots, WaitCompared, Bandwidth and Clean.
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
	// Snapshots may be nil.
	Snapshots Snapshots
	// RepairSnapshots removes the snapshots of an image that are known to be damaged, or replaces their files if containers stand on
	// them. It may be nil: then a pull fails that needs such a snapshot.
	RepairSnapshots func(ctx context.Context, e imagepin.Entry) error
	// WaitCompared waits until the images of a repository that the node may have lost files of are compared with their layers. It may
	// be nil.
	WaitCompared func(ctx context.Context, ref string) error
	// Bandwidth limits what all pulls receive. nil means no limit.
	Bandwidth *bandwidth.Limiter
	// Settings returns the current settings. It is called for each pull.
	Settings func() *Settings
	// Runtimes returns the runtime handlers of the node.
	Runtimes func() *runtimeplatform.Set
	// Clean waits until the node has no snapshots any more that a pull had unpacked when the power was cut.
	Clean func(context.Context) error
}

// Images provides the images of the node. [store.Store] implements it.
type Images interface {
	Index
	Records
	// BeginReplace records that a blob is about to be deleted and written again. Call done when it is written.
	BeginReplace(d digest.Digest) (done func(context.Context) error)
}

// Snapshots knows which snapshots are damaged. [health.Checker] implements it.
type Snapshots interface {
	// SnapshotDamage describes the damage of the files of an entry's snapshots. It returns "" if none is known.
	SnapshotDamage(ctx context.Context, e imagepin.Entry) (why string, _ error)
}

// Index finds the images that are ready.
type Index interface {
	Get(k imagepin.Key) (imagepin.Entry, bool)
	ByRef(ref string) []imagepin.Entry
	ByID(id digest.Digest) []imagepin.Entry
	// InRepository reports whether a repository has an image ID, and with this manifest if it is not empty.
	InRepository(id, manifest digest.Digest, repository string) bool
	// NeedsSnapshot reports whether a key needs a snapshot as its top one.
	NeedsSnapshot(snapshotter string, chainID digest.Digest) bool
}

// Records records which images are ready.
type Records interface {
	// AddToLease adds what entries need to the lease in ctx. It fails with ErrNotFound if a part is gone.
	AddToLease(ctx context.Context, entries ...imagepin.Entry) error
	// PutChosen records the entries that choose returns. No key changes meanwhile.
	PutChosen(ctx context.Context, proof string, choose func() ([]imagepin.Entry, error)) (store.Change, error)
	// PutIf records a key that was made ready again, if the record called witness still targets its image.
	PutIf(ctx context.Context, e imagepin.Entry, witness string) (restored bool, _ error)
	// HasKey reports whether the key of an entry is recorded for the entry's image, ready or not.
	HasKey(ctx context.Context, e imagepin.Entry) (bool, error)
	// Recorded reports whether Put has nothing to write.
	Recorded(ctx context.Context, proof string, entries ...imagepin.Entry) (bool, error)
	// ReleaseUnpacked removes the reference from an image's configuration to its snapshot, unless a key needs the
	// snapshot.
	ReleaseUnpacked(ctx context.Context, id digest.Digest, snapshotter string) error
	// Unsynced returns the records of an entry that upstream may not have yet. MarkSynced marks records that it has.
	Unsynced(e imagepin.Entry) []string
	MarkSynced(names ...string)
}

// Pins is the part of [decide.Decider] that a pull needs after the decision.
type Pins interface {
	// Claim makes the pin of the first use, and reserves space for what the pins retain until release is called.
	Claim(ctx context.Context, v decide.Verdict, image imagepin.Entry, arrived func() int64) (_ decide.Verdict, release func(), _ error)
	// Current fails with a *[decide.MovedError] if a verdict is not right any more. movesTag reports whether it decides what its
	// tag resolves to.
	Current(v decide.Verdict) (movesTag bool, _ error)
	PinnedDigestGone(ctx context.Context, v decide.Verdict, target string, err error) error
}

// Sessions opens sessions with registries. [resolve.Resolver] implements it.
type Sessions interface {
	Session(ref reference.Named, c resolve.Credential) *resolve.Session
}

// Retained keeps the content that pins retain. [retain.Retainer] implements it.
type Retained interface {
	// SyncImage retains an image that has been recorded, if a pin does.
	SyncImage(ctx context.Context, e imagepin.Entry) error
	// Synced reports whether SyncImage has nothing to retain.
	Synced(e imagepin.Entry) bool
}

// Upstream is containerd's own CRI service.
type Upstream interface {
	// WaitVisible waits until upstream has an image ID under every name. It stops waiting for a name when wanted
	// returns false. It fails with [imagepin.UpstreamNotSynced].
	WaitVisible(ctx context.Context, id digest.Digest, names []string, wanted func(name string) bool) error
}

// Garbage runs containerd's garbage collection.
type Garbage interface {
	Collect(ctx context.Context) error
	// CollectAsync does not wait for the collection.
	CollectAsync()
}

// Maker pulls, unpacks and records images whose digest is decided. It is safe for concurrent use.
type Maker struct {
	config   Config
	unpacker *unpacker
	resumes  *resumes
}

// New returns a Maker.
func New(c Config) *Maker {
	if c.Clean == nil {
		c.Clean = func(context.Context) error { return nil }
	}
	return &Maker{config: c, unpacker: newUnpacker(c), resumes: newResumes(c)}
}

// maxTries is the maximum number of attempts for an image. A new attempt is needed if something that the image needs
// was removed, or its reference was pinned, during the last one.
const maxTries = 5

// Make fetches, unpacks and records the image of a verdict, and returns once containerd's CRI service has it. It skips
// what is ready.
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

// tryMake makes the image of a job ready. It starts again if the node changed meanwhile.
func (m *Maker) tryMake(ctx context.Context, j Job) (entry imagepin.Entry, outcome Outcome, err error) {
	if m.config.WaitCompared != nil && !j.Record.restores() {
		if err := m.config.WaitCompared(ctx, j.Ref.String()); err != nil {
			return entry, "", err
		}
	}
	for range maxTries {
		entry, outcome, err = m.makeOnce(ctx, j)
		var moved *decide.MovedError
		switch {
		case errors.As(err, &moved):
			j.Verdict, j.verified = moved.Verdict, false
		case errors.Is(err, errRemoved):
			j.retry = true
		case errno.NoSpace(err) && ctx.Err() == nil && m.resumes.free(ctx):
			m.collect(ctx)
			j.retry = true
		default:
			return entry, outcome, err
		}
	}
	m.collect(ctx) // no further attempt needs what the last one left
	return entry, outcome, complete(err, imagepin.CannotPullImage, j.Ref.String(), j.Runtime.Target)
}

// retryable reports whether a job that failed with err is tried again. Its content is not collected before the next
// attempt, which needs most of it.
func retryable(err error) bool {
	var moved *decide.MovedError
	return errors.As(err, &moved) || errors.Is(err, errRemoved)
}

// makeOnce makes one attempt: it verifies the image of a job, makes and records it, and waits for upstream. The image
// cannot be removed while it is looked at and while it is recorded. It can be removed while it is fetched, because that
// takes as long as a registry wants: a lease holds what is fetched, and what was there is looked at again.
func (m *Maker) makeOnce(ctx context.Context, j Job) (entry imagepin.Entry, outcome Outcome, _ error) {
	if !j.verified {
		if err := verify(ctx, m.config.Settings().Verifiers, j.Ref.String(), j.Root); err != nil {
			return entry, "", complete(err, imagepin.ImageVerificationFailed, j.Ref.String(), j.Runtime.Target)
		}
	}
	byDigest, err := j.byDigest()
	if err != nil {
		return entry, "", err
	}
	use := &use{locks: m.config.Locks, refs: []string{j.Ref.String(), byDigest.String()}}
	if err := use.lock(ctx); err != nil {
		return entry, "", err
	}
	defer use.end()
	if !j.Record.restores() { // a repair does not decide what its reference resolves to
		if _, err := m.config.Pins.Current(j.Verdict); err != nil {
			return entry, "", err
		}
	}
	if err := m.checkLost(ctx, j); err != nil {
		return entry, "", err
	}
	start := time.Now()
	entry, wrote, outcome, err := m.makeAndRecord(ctx, j, use)
	if err != nil {
		use.end() // a collection waits for every snapshotter
		if !retryable(err) {
			m.collect(ctx)
		}
		return imagepin.Entry{}, "", m.failed(ctx, j, err)
	}
	if err := m.WaitVisible(ctx, entry); err != nil {
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

// makeAndRecord makes and records the key of a job. It skips what is ready.
func (m *Maker) makeAndRecord(ctx context.Context, j Job, use *use) (entry imagepin.Entry, wrote bool, outcome Outcome, err error) {
	known, ok := m.ready(j.Ref, j.Root.Digest, j.Runtime.Target)
	if !ok || j.Record.restores() || j.retry {
		use.end()
		err = m.resumes.with(ctx, func(ctx context.Context) (manifest digest.Digest, err error) {
			entry, wrote, outcome, err = m.fetchAndRecord(ctx, j, use)
			return entry.Manifest, err
		})
		return entry, wrote, outcome, err
	}
	if j.Session != nil {
		known.Source = imagepin.SourcePull // whichever tool pulled it: its registry has returned it now
	}
	known.ReadyAt = time.Now() // this pull is later than a move of the tag before it that is adopted meanwhile
	if entry, ok, err = m.recorded(ctx, j, known); ok || err != nil {
		return entry, false, UpToDate, err
	}
	if err := m.syncAdopted(ctx, j, known, use); err != nil {
		return imagepin.Entry{}, false, "", err
	}
	err = lease.With(ctx, m.config.Leases, lease.Pull, func(ctx context.Context) error {
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

// syncAdopted makes an image durable that is ready without a mark, such as one that another tool has just pulled. It gets no mark: it
// can be older than the boot, and have lost files. The image is not locked meanwhile, so syncAdopted fails with errRemoved if it has changed.
func (m *Maker) syncAdopted(ctx context.Context, j Job, known imagepin.Entry, use *use) error {
	if known.Durable != "" || m.config.Settings().Durable == nil {
		return nil
	}
	use.end()
	if _, err := m.config.Settings().sync(ctx, known); err != nil {
		return err
	}
	if err := use.lock(ctx); err != nil {
		return err
	}
	if now, ok := m.ready(j.Ref, j.Root.Digest, j.Runtime.Target); !ok || now.ImageID != known.ImageID || now.ChainID != known.ChainID {
		return errRemoved
	}
	return nil
}

// fetchAndRecord makes and records the key of a job under the lease in ctx. It locks the image when it has fetched all.
func (m *Maker) fetchAndRecord(ctx context.Context, j Job, use *use) (entry imagepin.Entry, wrote bool, outcome Outcome, err error) {
	if err := m.config.Clean(ctx); err != nil {
		return entry, false, "", err
	}
	fetching, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	img, err := m.unpacker.choose(fetching, j, cancel)
	if err != nil {
		return entry, false, "", asRemoved(withCause(fetching, err))
	}
	defer func() {
		if err != nil {
			m.releaseUnpacked(ctx, img)
		}
	}()
	release, err := m.usePin(ctx, &j, img.measured)
	if err != nil {
		return entry, false, "", err
	}
	defer release()
	made, err := m.unpackDurably(ctx, fetching, img)
	if err != nil {
		return entry, false, "", err
	}
	repaired, err := m.repairSnapshots(fetching, img.source, made)
	if err != nil {
		return entry, false, "", asRemoved(withCause(fetching, err))
	}
	if repaired {
		if made, err = m.unpackDurably(ctx, fetching, img); err != nil {
			return entry, false, "", err
		}
	}
	if err := use.lock(ctx); err != nil {
		return entry, false, "", err
	}
	if err := m.checkLost(ctx, j); err != nil {
		return entry, false, "", err
	}
	failpoint.Reach("pull.made")
	if err := m.checkSnapshot(ctx, made); err != nil {
		return entry, false, "", err
	}
	entry, wrote, err = m.record(ctx, j, made)
	if outcome = Unpacked; img.source.opened.Load() {
		outcome = Fetched
	}
	return entry, wrote, outcome, err
}

// releaseUnpacked removes the reference from an image's configuration to the snapshot that a failed job unpacked.
// Another target's key may keep the configuration, and with it the snapshot.
func (m *Maker) releaseUnpacked(ctx context.Context, img *chosen) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	id, err := m.unpacker.imageID(ctx, img.manifest())
	if err != nil {
		return // it was not fetched
	}
	if err := m.config.Images.ReleaseUnpacked(ctx, id, img.job.Runtime.Target.Snapshotter); err != nil {
		log.G(ctx).WithError(err).WithField("ref", img.job.Ref.String()).Warn("cannot release the snapshot of a failed pull, it stays until the next start")
	}
}

// use is the lock for use of what a job records: its digest, and its reference.
type use struct {
	locks  *Locks
	refs   []string
	unlock func() // nil if it is not locked
}

func (u *use) lock(ctx context.Context) (err error) {
	u.unlock, err = u.locks.ForUse(ctx, u.refs...)
	return err
}

// end ends the use, if there is one.
func (u *use) end() {
	if u.unlock != nil {
		u.unlock()
		u.unlock = nil
	}
}

// usePin makes the pin of a job's verdict on the first use of the reference, see [decide.Decider.Claim].
func (m *Maker) usePin(ctx context.Context, j *Job, image imagepin.Entry) (release func(), err error) {
	j.Verdict, release, err = m.config.Pins.Claim(ctx, j.Verdict, image, j.meter.arrived(image.Size))
	return release, err
}

// ready finds a digest of ref's repository that is ready for a target, under ref or under its digest.
func (m *Maker) ready(ref reference.Named, root digest.Digest, t runtimeplatform.Target) (imagepin.Entry, bool) {
	if e, ok := m.config.Images.Get(imagepin.Key{Ref: ref.String(), Target: t}); ok && e.Root.Digest == root {
		return e, true
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root)
	if err != nil {
		return imagepin.Entry{}, false
	}
	return m.config.Images.Get(imagepin.Key{Ref: byDigest.String(), Target: t})
}

// WaitVisible waits until containerd's CRI service has an image as it is recorded. It sends no request if that is known. It
// fails with [imagepin.UpstreamNotSynced] (ErrUnavailable).
func (m *Maker) WaitVisible(ctx context.Context, e imagepin.Entry) error {
	names := m.config.Images.Unsynced(e)
	if len(names) == 0 {
		return nil
	}
	unsynced := func(name string) bool { return slices.Contains(m.config.Images.Unsynced(e), name) }
	return traced(ctx, "visible", func(ctx context.Context) error {
		if err := m.config.Upstream.WaitVisible(ctx, e.ImageID, names, unsynced); err != nil {
			return err
		}
		m.config.Images.MarkSynced(names...)
		failpoint.Reach("pull.visible")
		return nil
	})
}

// failed returns the error of a job that failed with err.
func (m *Maker) failed(ctx context.Context, j Job, err error) error {
	switch {
	case retryable(err):
		return err
	case j.Pin != nil && GoneAtRegistry(err):
		return m.config.Pins.PinnedDigestGone(ctx, j.Verdict, j.Runtime.Target.String(), err)
	case j.Pin != nil && resolve.MayBeGone(err):
		err = decide.WithPin(*j.Pin, err)
	}
	return complete(err, imagepin.CannotPullImage, j.Ref.String(), j.Runtime.Target)
}

const (
	// cleanupTimeout bounds cleanup after the caller has gone.
	cleanupTimeout = 30 * time.Second
	// collectWait bounds how long a failed pull waits for garbage collection.
	collectWait = 2 * time.Second
)

// withLease runs fn under a lease that holds everything that fn fetches and unpacks. If fn fails, garbage is collected
// later, because the caller may hold a lock.
func (m *Maker) withLease(ctx context.Context, fn func(context.Context) error) error {
	err := lease.With(ctx, m.config.Leases, lease.Pull, fn)
	if err != nil {
		m.config.Garbage.CollectAsync()
	}
	return err
}

// collect collects garbage and waits up to collectWait: a collection takes as long as the slowest snapshotter. The
// caller must not hold a lock of its own. CreateContainer and RunPodSandbox hold the digest for use meanwhile, which
// prevents its removal.
func (m *Maker) collect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), collectWait)
	defer cancel()
	if err := m.config.Garbage.Collect(ctx); err != nil {
		m.config.Garbage.CollectAsync()
	}
}
