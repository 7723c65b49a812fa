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
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// job is one key to make ready, once it is known which digest it means.
type job struct {
	ref     reference.Named
	root    ocispec.Descriptor
	host    string // that named the digest, where one was asked
	runtime runtimeplatform.Runtime

	session    *resolve.Session // where the registry was asked
	credential resolve.Credential
	proof      string // of the credential, where it was accepted

	pin      *pin.Pin            // that decided root; nil where none did
	toPin    *pinRequest         // the pin that root is to become; nil where none is
	registry *ocispec.Descriptor // what the registry says that ref means
	progress transfer.ProgressFunc
	done     func(metrics.Done)
	manifest digest.Digest // that was chosen; empty before
	anew     bool          // though it is recorded as ready
	again    bool          // though an earlier try has found it ready, or made it
	counted  bool          // already, as a part of the same pull
	verified bool          // already
}

// job is what a verdict on a request makes to do.
func (v Verdict) job(ref reference.Named, r Request) job {
	return job{
		ref: ref, root: v.Root, host: v.Host, runtime: r.Runtime,
		session: v.session, credential: r.Credential, proof: v.proof,
		pin: v.Pin, toPin: v.toPin, registry: v.Registry,
		progress: r.Progress, done: r.Done,
	}
}

// byDigest is the reference of the job's root.
func (j job) byDigest() (reference.Canonical, error) {
	return reference.WithDigest(reference.TrimNamed(j.ref), j.root.Digest)
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
	}, tracing.WithAttribute("image.ref", j.ref.String()), tracing.WithAttribute("image.target", j.runtime.Target.String()),
		tracing.WithAttribute("image.digest", j.root.Digest.String()))
	if !j.counted {
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
	defer j.toPin.releaseRoom()
	for range maxTries {
		entry, done, err = p.tryKey(ctx, j)
		var other *pinnedElsewhere
		switch {
		case errors.As(err, &other):
			j = p.follows(j, other.pin)
		case errors.Is(err, errRemoved):
			j.again = true // not anew: that is trusted with what is on the node
		default:
			return entry, done, err
		}
	}
	p.collect(ctx) // no further try needs what the last one has left
	return entry, done, complete(err, imagepin.CannotPullImage, j.ref.String(), j.runtime.Target)
}

// triedAgain reports whether a job that err has ended is tried again. What it has
// left is not collected before that: it is most of what the next try needs.
func triedAgain(err error) bool {
	var other *pinnedElsewhere
	return errors.As(err, &other) || errors.Is(err, errRemoved)
}

// tryKey verifies, makes, records and shows the key of a job. Nothing removes its
// digest meanwhile.
func (p *Puller) tryKey(ctx context.Context, j job) (entry imagepin.Entry, done metrics.Done, _ error) {
	if !j.verified {
		if err := verify(ctx, p.Verifiers, j.ref.String(), j.root); err != nil {
			return imagepin.Entry{}, failure(ctx), complete(err, imagepin.ImageVerificationFailed, j.ref.String(), j.runtime.Target)
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
	if err := p.stillPinned(j); err != nil {
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
	case j.pin != nil && gone(err):
		return goneError(j.pin, j.runtime.Target.String(), p.tagNow(ctx, j), err)
	}
	return complete(err, imagepin.CannotPullImage, j.ref.String(), j.runtime.Target)
}

// makeAndRecord makes what the job's key needs, as far as it is not ready, and
// records the key.
func (p *Puller) makeAndRecord(ctx context.Context, j job) (entry imagepin.Entry, change store.Change, done metrics.Done, err error) {
	known, ok := p.ready(j.ref, j.root.Digest, j.runtime.Target)
	if !ok || j.anew || j.again {
		done = metrics.Unpacked
		err = underLease(ctx, p.Leases, func(ctx context.Context) error {
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
	if j.session != nil {
		known.Source = imagepin.SourcePull // whoever brought it: its registry has given it now
	}
	if entry, ok = p.recorded(j, known); ok {
		return entry, store.Change{}, metrics.Nothing, p.prove(ctx, j)
	}
	err = underLease(ctx, p.Leases, func(ctx context.Context) error {
		if err := p.pinFirst(ctx, &j, known); err != nil {
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
		log.G(ctx).WithError(err).WithField("ref", j.ref.String()).Warn("what a failed pull has unpacked stays until the next start")
	}
}

// gone tells whether content that a pull needs is not to be had.
func gone(err error) bool {
	var e *imagepin.Error
	return errdefs.IsNotFound(err) && atRegistry(err) && !(errors.As(err, &e) && e.Name == imagepin.NoMatchingPlatform)
}
