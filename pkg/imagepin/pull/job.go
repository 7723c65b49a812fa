package pull

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// job is one key to make ready, once it is decided which digest it means.
type job struct {
	decide.Verdict
	runtime  runtimeplatform.Runtime
	progress transfer.ProgressFunc
	done     func(metrics.Done)

	manifest    digest.Digest // that was chosen; empty before
	release     func()        // gives up the room for what its pin retains; nil where there is none
	force       bool          // though it is recorded as ready
	again       bool          // though an earlier try has found it ready, or made it
	skipMetrics bool          // it is counted already, as a part of the same pull
	verified    bool          // already
}

// byDigest is the reference of the job's root.
func (j job) byDigest() (reference.Canonical, error) {
	return reference.WithDigest(reference.TrimNamed(j.Ref), j.Root.Digest)
}

// ready finds a digest of ref's repository that is ready for a target, under
// whatever reference.
func (p *Puller) ready(ref reference.Named, root digest.Digest, t runtimeplatform.Target) (imagepin.Entry, bool) {
	if e, ok := p.Store.Get(imagepin.Key{Ref: ref.String(), Target: t}); ok && e.Root.Digest == root {
		return e, true
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root)
	if err != nil {
		return imagepin.Entry{}, false
	}
	return p.Store.Get(imagepin.Key{Ref: byDigest.String(), Target: t})
}

// run makes a key ready, and counts it.
func (p *Puller) run(ctx context.Context, j job) (entry imagepin.Entry, err error) {
	done := metrics.Nothing
	err = traced(ctx, "ready", func(ctx context.Context) error {
		entry, done, err = p.makeKey(ctx, j)
		tracing.SpanFromContext(ctx).SetAttributes(tracing.Attribute("done", string(done)))
		return err
	}, tracing.WithAttribute("image.ref", j.Ref.String()), tracing.WithAttribute("image.target", j.runtime.Target.String()),
		tracing.WithAttribute("image.digest", j.Root.Digest.String()))
	if !j.skipMetrics {
		metrics.Pull(done)
	}
	if err == nil && j.done != nil {
		j.done(done)
	}
	return entry, err
}

// maxTries is how often a key is made because something else was removed that it
// was to be made of, or pinned, in between.
const maxTries = 5

// makeKey makes the key of a job, again where the node has changed meanwhile. done
// is what had to be done, or how that failed.
func (p *Puller) makeKey(ctx context.Context, j job) (entry imagepin.Entry, done metrics.Done, err error) {
	for range maxTries {
		entry, done, err = p.tryKey(ctx, j)
		var moved *decide.MovedError
		switch {
		case errors.As(err, &moved):
			j.Verdict, j.verified = moved.Verdict, false
		case errors.Is(err, errRemoved):
			j.again = true // not force: that is trusted with what is on the node
		default:
			return entry, done, err
		}
	}
	p.collect(ctx) // no further try needs what the last one has left
	return entry, done, complete(err, imagepin.CannotPullImage, j.Ref.String(), j.runtime.Target)
}

// triedAgain reports whether a job that err has ended is tried again. What it has
// left is not collected before that: it is most of what the next try needs.
func triedAgain(err error) bool {
	var moved *decide.MovedError
	return errors.As(err, &moved) || errors.Is(err, errRemoved)
}

// tryKey verifies, makes, records and shows the key of a job. Nothing removes its
// digest meanwhile.
func (p *Puller) tryKey(ctx context.Context, j job) (entry imagepin.Entry, done metrics.Done, _ error) {
	if !j.verified {
		if err := verify(ctx, p.Verifiers, j.Ref.String(), j.Root); err != nil {
			return imagepin.Entry{}, failure(ctx), complete(err, imagepin.ImageVerificationFailed, j.Ref.String(), j.runtime.Target)
		}
	}
	byDigest, err := j.byDigest()
	if err != nil {
		return imagepin.Entry{}, failure(ctx), err
	}
	unlock, err := p.images.RLock(ctx, byDigest.String())
	if err != nil {
		return imagepin.Entry{}, failure(ctx), err
	}
	defer unlock()
	if err := p.Decider.CheckPin(j.Verdict); err != nil {
		return imagepin.Entry{}, done, err
	}
	start := time.Now()
	entry, change, done, err := p.makeAndRecord(ctx, j)
	if err != nil {
		unlock() // a collection waits for every snapshotter
		if !triedAgain(err) {
			p.collect(ctx)
		}
		return imagepin.Entry{}, failure(ctx), p.failed(ctx, j, err)
	}
	if err := p.Show(ctx, entry); err != nil {
		return imagepin.Entry{}, failure(ctx), p.failed(ctx, j, err)
	}
	if change.Wrote {
		log.G(ctx).WithFields(log.Fields{
			"ref": entry.Ref, "target": entry.Target.String(), "digest": entry.Root.Digest,
			"manifest": entry.Manifest, "image": entry.ImageID, "host": entry.Host, "took": time.Since(start),
		}).Info("image is ready")
	}
	return entry, done, nil
}

// Show waits until containerd's CRI knows an image as it is recorded, whoever has
// recorded it. It asks nothing where that is known.
func (p *Puller) Show(ctx context.Context, e imagepin.Entry) error {
	names := p.Store.Unseen(e)
	if len(names) == 0 {
		return nil
	}
	unseen := func(name string) bool { return slices.Contains(p.Store.Unseen(e), name) }
	return traced(ctx, "visible", func(ctx context.Context) error {
		if err := p.Visible(ctx, e.ImageID, names, unseen); err != nil {
			return err
		}
		p.Store.Seen(names...)
		failpoint.Reach("pull.visible")
		return nil
	})
}

// failed is the error of a job that err has ended.
func (p *Puller) failed(ctx context.Context, j job, err error) error {
	switch {
	case triedAgain(err):
		return err
	case j.Pin != nil && gone(err):
		return p.Decider.Gone(ctx, j.Verdict, j.runtime.Target.String(), err)
	}
	return complete(err, imagepin.CannotPullImage, j.Ref.String(), j.runtime.Target)
}

// makeAndRecord makes what the job's key needs, as far as it is not ready, and
// records the key.
func (p *Puller) makeAndRecord(ctx context.Context, j job) (entry imagepin.Entry, change store.Change, done metrics.Done, err error) {
	defer func() { j.releaseRoom() }()
	known, ok := p.ready(j.Ref, j.Root.Digest, j.runtime.Target)
	if !ok || j.force || j.again {
		done = metrics.Unpacked
		err = lease.With(ctx, p.Leases, lease.Pull, func(ctx context.Context) error {
			made, fetched, err := p.make(ctx, &j)
			err = asRemoved(err)
			if fetched {
				done = metrics.Fetched
			}
			if err == nil {
				failpoint.Reach("pull.made")
				entry, change, err = p.record(ctx, j, made)
			}
			if err != nil {
				p.letGo(ctx, j)
			}
			return err
		})
		return entry, change, done, err
	}
	if j.Session != nil {
		known.Source = imagepin.SourcePull // whoever brought it: its registry has given it now
	}
	if entry, ok = p.recorded(j, known); ok {
		return entry, store.Change{}, metrics.Nothing, nil
	}
	err = lease.With(ctx, p.Leases, lease.Pull, func(ctx context.Context) error {
		if err := p.usePin(ctx, &j, known); err != nil {
			return err
		}
		entry, change, err = p.record(ctx, j, known)
		return err
	})
	if done = metrics.Nothing; change.Wrote {
		done = metrics.Recorded
	}
	return entry, change, done, err
}

// letGo lets go of the snapshot of a job that has failed, which unpacking made the
// image's configuration keep: a key of another target may keep that.
func (p *Puller) letGo(ctx context.Context, j job) {
	if j.manifest == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	m, err := images.Manifest(ctx, p.Content, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: j.manifest}, platforms.All)
	if err != nil {
		return // it was not fetched
	}
	if err := p.Store.LetGo(ctx, m.Config.Digest, j.runtime.Target.Snapshotter); err != nil {
		log.G(ctx).WithError(err).WithField("ref", j.Ref.String()).Warn("what a failed pull has unpacked stays until the next start")
	}
}

// gone tells whether content that a pull needs is not to be had.
func gone(err error) bool {
	var e *imagepin.Error
	return errdefs.IsNotFound(err) && atRegistry(err) && !(errors.As(err, &e) && e.Name == imagepin.NoMatchingPlatform)
}

// usePin reserves room for what the pin of a job retains, and makes the pin where this is the first use of the
// reference. image is what is known of the image, see [decide.Decider.Reserve]. It fails as that does, and as
// [decide.Decider.PinFirstUse] does.
func (p *Puller) usePin(ctx context.Context, j *job, image imagepin.Entry) (err error) {
	if j.release, err = p.Decider.Reserve(j.Verdict, image); err != nil {
		return err
	}
	j.Verdict, err = p.Decider.PinFirstUse(ctx, j.Verdict)
	return err
}

// releaseRoom gives up the room that usePin has reserved.
func (j *job) releaseRoom() {
	if j.release != nil {
		j.release()
	}
}
