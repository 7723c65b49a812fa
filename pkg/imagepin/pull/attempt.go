package pull

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
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

// makeOnce makes one attempt: it verifies the image of a job, makes and records it, and waits for upstream. The image
// cannot be removed while it is looked at and while it is recorded. It can be removed while it is fetched, because that
// takes as long as a registry wants: a lease holds what is fetched, and what was there is looked at again.
func (m *Maker) makeOnce(ctx context.Context, j Job) (entry imagepin.Entry, outcome Outcome, _ error) {
	if !j.verified {
		if err := m.verify(ctx, j.Ref, j.Root); err != nil {
			return entry, "", err
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
	if err == nil {
		err = m.WaitVisible(ctx, entry)
	} else {
		use.end() // a collection waits for every snapshotter
		if !retryable(err) {
			m.collect(ctx)
		}
	}
	if err != nil {
		return imagepin.Entry{}, "", err
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
	manifest, err := images.Manifest(ctx, m.config.Content, img.manifest(), platforms.All)
	if err != nil {
		return // it was not fetched
	}
	if err := m.config.Images.ReleaseUnpacked(ctx, manifest.Config.Digest, img.job.Runtime.Target.Snapshotter); err != nil {
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

// record records an image under the job's reference and under its digest, so that both find it. The lease in ctx holds
// the image from then on. It fails with errRemoved if a part of the image is gone, and with a *[decide.MovedError] if the job's
// verdict is not right any more.
func (m *Maker) record(ctx context.Context, j Job, e imagepin.Entry) (recorded imagepin.Entry, wrote bool, err error) {
	if e, err = j.keyOfDigest(e); err != nil {
		return imagepin.Entry{}, false, err
	}
	ctx, end := startStep(ctx, "record")
	defer func() { end(err) }()
	err = m.config.Images.AddToLease(ctx, e)
	if errdefs.IsNotFound(err) {
		err = errRemoved
	}
	if err != nil {
		return e, false, err
	}
	if e, wrote, err = m.put(ctx, j, e); err != nil {
		return e, wrote, err
	}
	failpoint.Reach("pull.recorded")
	// A pin that was made before does not retain the image yet, because it was not recorded.
	return e, wrote, m.config.Retained.SyncImage(ctx, e)
}

// put records the keys of a job's image. It returns the entry of the job's reference, or of the digest if the job does not decide
// what the reference resolves to on the node.
func (m *Maker) put(ctx context.Context, j Job, e imagepin.Entry) (recorded imagepin.Entry, wrote bool, _ error) {
	if j.Record.restores() {
		e, err := m.putLost(ctx, *j.Record.lost, e)
		return e, err == nil, err
	}
	change, err := m.config.Images.PutChosen(ctx, j.proof(), func() ([]imagepin.Entry, error) {
		entries, err := m.entries(j, e)
		if err == nil {
			recorded = entries[len(entries)-1]
		}
		return entries, err
	})
	return recorded, change.Wrote, err
}

// proof returns the proof whose use a job records: a new one, or the one that allowed it.
func (j Job) proof() string { return store.ProofText(cmp.Or(j.Proof, j.UsedProof), j.Namespace) }

// recorded reports whether record has nothing to do for an image that is ready, and returns its entry.
func (m *Maker) recorded(ctx context.Context, j Job, e imagepin.Entry) (_ imagepin.Entry, ok bool, _ error) {
	e, err := j.keyOfDigest(e)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	entries, err := m.entries(j, e)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	e = entries[len(entries)-1]
	if j.FirstUse != nil || !m.config.Retained.Synced(e) {
		return e, false, nil
	}
	ok, err = m.config.Images.Recorded(ctx, j.proof(), entries...)
	return e, ok, err
}

// keyOfDigest returns an entry for the job's image under its digest.
func (j Job) keyOfDigest(e imagepin.Entry) (imagepin.Entry, error) {
	byDigest, err := j.byDigest()
	if err != nil {
		return e, err
	}
	e.Ref = byDigest.String()
	// An image that is ready can be on the record of another tag.
	e.Record, err = store.RecordName(j.Ref, e.RecordTarget.Digest)
	return e, err
}

// entries returns the keys of a job's image: the key of its digest, and the key of its reference if the job decides
// what the reference resolves to on the node. It fails with a *[decide.MovedError] if the job's verdict is not right any more.
func (m *Maker) entries(j Job, byDigest imagepin.Entry) ([]imagepin.Entry, error) {
	movesTag, err := m.config.Pins.Current(j.Verdict)
	if err != nil {
		return nil, err
	}
	entries, tagged := []imagepin.Entry{byDigest}, byDigest
	tagged.Ref = j.Ref.String()
	now, ok := m.config.Images.Get(tagged.Key)
	if moved := ok && now.Root.Digest != tagged.Root.Digest; tagged.Ref == byDigest.Ref || !movesTag || moved && j.Record.keep {
		return entries, nil
	}
	return append(entries, tagged), nil
}

// checkLost returns errUnneeded if the key that a job repairs is not recorded any more. The caller holds the mutex of the
// image's digest, so that no call removes the key until it is unlocked.
func (m *Maker) checkLost(ctx context.Context, j Job) error {
	if !j.Record.restores() {
		return nil
	}
	recorded, err := m.config.Images.HasKey(ctx, *j.Record.lost)
	if err == nil && !recorded {
		return errUnneeded
	}
	return err
}

// putLost records a repaired key. made is the image that the repair has made from the same digest. putLost returns
// errUnneeded if another tool has removed the image, or a pull has moved its tag.
func (m *Maker) putLost(ctx context.Context, lost, made imagepin.Entry) (imagepin.Entry, error) {
	if made.ImageID != lost.ImageID || made.ChainID != lost.ChainID {
		return imagepin.Entry{}, fmt.Errorf("%s is image %s for target %s, it was recorded as image %s: %w", lost.Root.Digest,
			made.ImageID, lost.Target, lost.ImageID, errdefs.ErrFailedPrecondition)
	}
	lost.Durable = made.Durable
	restored, err := m.config.Images.PutIf(ctx, lost, lost.Record)
	if err == nil && !restored {
		err = errUnneeded
	}
	if now, ok := m.config.Images.Get(lost.Key); err == nil && ok && now.Root.Digest != lost.Root.Digest {
		err = errUnneeded
	}
	return lost, err
}

// failed returns the error of a job that failed with err, or nil if it has not failed.
func (m *Maker) failed(ctx context.Context, j Job, err error) error {
	switch {
	case err == nil:
		return nil
	case j.Pin != nil && GoneAtRegistry(err):
		return m.config.Pins.PinnedDigestGone(ctx, j.Verdict, j.Runtime.Target.String(), err)
	case j.Pin != nil && resolve.MayBeGone(err):
		err = decide.WithPin(*j.Pin, err)
	}
	return complete(err, imagepin.CannotPullImage, j.Ref.String(), j.Runtime.Target)
}
