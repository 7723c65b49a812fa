package pull

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/core/transfer/local"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/flight"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config is what a Puller works with.
type Config struct {
	Content  content.Store
	Leases   leases.Manager
	Store    *store.Store
	Resolver *resolve.Resolver
	Runtimes *runtimeplatform.Set
	Policy   *policy.Policy
	Pins     *pin.Store
	Retainer *pin.Retainer
	// Verifiers are the image verifier plugins by name.
	Verifiers map[string]imageverifier.ImageVerifier
	// UnpackPlatforms has one entry per snapshotter; its Platform has to match all.
	UnpackPlatforms []unpack.Platform
	// Visible waits until the CRI service behind knows the image called id
	// under every name.
	Visible func(ctx context.Context, id digest.Digest, names []string) error

	// DiscardLayers lets layers go once they are unpacked.
	DiscardLayers bool
	// ProgressTimeout ends a pull that makes no progress for so long; zero
	// never does.
	ProgressTimeout time.Duration
	// MaxConcurrentDownloads limits the layers fetched at once; zero does not.
	MaxConcurrentDownloads int
	// MaxConcurrentUnpacks is how many layers of one image are unpacked at
	// once in a snapshotter that can rebase.
	MaxConcurrentUnpacks int
	// ConcurrentLayerFetchBuffer is the size, in bytes, of the pieces that a
	// layer is fetched in; zero fetches it whole.
	ConcurrentLayerFetchBuffer int
}

// Puller makes keys ready. It is safe for concurrent use.
type Puller struct {
	Config
	transfer transfer.Transferrer
	*underWay
}

// underWay is what is going on, and what keeps it apart.
type underWay struct {
	blobs    keyed.Mutex   // of blobs and snapshots being made
	images   keyed.RWMutex // by reference: read while in use, written to remove
	pulls    flight.Group[imagepin.Entry]
	makes    flight.Group[imagepin.Entry]
	unshared atomic.Uint64
}

// New makes a puller.
func New(c Config) *Puller { return newPuller(c, &underWay{}) }

// With gives a puller with another configuration that shares what is under way:
// pulls that have begun go on as they began, and equal ones join them. Both may
// be used at once.
func (p *Puller) With(c Config) *Puller { return newPuller(c, p.underWay) }

func newPuller(c Config, u *underWay) *Puller {
	p := &Puller{Config: c, underWay: u}
	p.transfer = local.NewTransferService(c.Content, nil, local.TransferConfig{
		Leases:                     c.Leases,
		MaxConcurrentDownloads:     c.MaxConcurrentDownloads,
		MaxConcurrentUnpacks:       c.MaxConcurrentUnpacks,
		ConcurrentLayerFetchBuffer: c.ConcurrentLayerFetchBuffer,
		DuplicationSuppressor:      &p.blobs,
		UnpackPlatforms:            c.UnpackPlatforms,
	})
	return p
}

// Request is one pull.
type Request struct {
	// Ref is the reference as the caller wrote it.
	Ref string
	// Runtime is whose target the image is made ready for.
	Runtime runtimeplatform.Runtime
	// Credential is the caller's; none is the node's own.
	Credential resolve.Credential
	// Pod is the pod that the pull is for; the zero value is none.
	Pod policy.Pod
	// Progress is told how far the pull is. A pull with it is not shared.
	Progress transfer.ProgressFunc
	// Done is told what had to be done.
	Done func(metrics.Done)

	decision policy.Decision
}

// Pull makes what a reference means now ready for a target, and returns once
// the CRI service behind knows it. Equal pulls at one time are one. A pull
// whose callers have all gone stops and leaves nothing.
//
// Errors are [imagepin.Error]; besides those of [resolve.Resolver.Resolve]:
// InvalidReference (ErrInvalidArgument), ImageVerificationFailed
// (ErrPermissionDenied), NoMatchingPlatform (ErrNotFound), ContentCorrupt
// (ErrFailedPrecondition), PullStalled (context.DeadlineExceeded) and
// CannotPullImage (the class of its cause).
func (p *Puller) Pull(ctx context.Context, r Request) (imagepin.Entry, error) {
	ref, err := ParseReference(r.Ref)
	if err != nil {
		return imagepin.Entry{}, err
	}
	r.decision = p.Decide(ctx, ref, r.Pod)
	return p.pulls.Do(ctx, p.pullKey(ref, r), func(ctx context.Context) (imagepin.Entry, error) {
		return p.pull(ctx, ref, r)
	})
}

// PullKept is [Puller.Pull] for a caller that will come again: the pull goes on
// when its callers have gone, and a later one joins it.
func (p *Puller) PullKept(ctx context.Context, r Request) (imagepin.Entry, error) {
	ref, err := ParseReference(r.Ref)
	if err != nil {
		return imagepin.Entry{}, err
	}
	r.decision = p.Decide(ctx, ref, r.Pod)
	return p.pulls.DoKept(ctx, p.pullKey(ref, r), func(ctx context.Context) (imagepin.Entry, error) {
		return p.pull(ctx, ref, r)
	})
}

// Decide gives the treatment of a reference for a pod, and says in the log what
// of the pod's annotations is not heeded.
func (p *Puller) Decide(ctx context.Context, ref reference.Named, pod policy.Pod) policy.Decision {
	d, ignored := p.Treatment(ref.String(), pod)
	if len(ignored) > 0 {
		log.G(ctx).WithField("ref", ref.String()).WithField("namespace", pod.Namespace).
			Warnf("annotations of the pod are not heeded: %s", strings.Join(ignored, ", "))
	}
	return d
}

// Treatment is what the policy decides for a reference and a pod, and what an
// operator has pinned: that holds also where no rule would pin the reference,
// until the pod's own scope has a pin.
func (p *Puller) Treatment(ref string, pod policy.Pod) (d policy.Decision, ignored []string) {
	d, ignored = p.Policy.Decide(ref, pod)
	if _, pinned := p.Pins.Get(pin.ID{Scope: d.Scope, Ref: ref}); pinned || !p.Pins.Pinned(ref) {
		return d, ignored
	}
	for _, scope := range p.Policy.Scopes(ref, pod) {
		if held, ok := p.Pins.Get(pin.ID{Scope: scope, Ref: ref}); ok && held.By == pin.ByOperator {
			d.Scope = scope
			break
		}
	}
	return d, ignored
}

func (p *Puller) pullKey(ref reference.Named, r Request) string {
	key := []string{
		ref.String(), r.Runtime.Target.String(), p.Resolver.Prover.Identity(r.Credential),
		string(r.decision.Behavior), string(r.decision.Scope),
	}
	if r.Progress != nil {
		key = append(key, fmt.Sprint(p.unshared.Add(1)))
	}
	return strings.Join(key, "\x00")
}

// ParseReference normalizes a reference as containerd's CRI does: short names
// are of docker.io, a missing tag is latest, and a digest overrides a tag.
func ParseReference(name string) (reference.Named, error) {
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return nil, &imagepin.Error{
			Name: imagepin.InvalidReference, Ref: fmt.Sprintf("%q", name), Class: errdefs.ErrInvalidArgument, Err: err,
			Do: "Write it as [registry/]repository[:tag][@digest].",
		}
	}
	return ref, nil
}

func (p *Puller) pull(ctx context.Context, ref reference.Named, r Request) (e imagepin.Entry, err error) {
	err = traced(ctx, "pull", func(ctx context.Context) error {
		e, err = p.pullOne(ctx, ref, r)
		return err
	}, tracing.WithAttribute("image.ref", ref.String()), tracing.WithAttribute("image.target", r.Runtime.Target.String()))
	return e, err
}

func (p *Puller) pullOne(ctx context.Context, ref reference.Named, r Request) (imagepin.Entry, error) {
	unlock, err := p.images.RLock(ctx, ref.String())
	if err != nil {
		metrics.Pull(failure(ctx))
		return imagepin.Entry{}, err
	}
	defer unlock()
	q := question{ref: ref, credential: r.Credential, decision: r.decision}
	if p.retainsAnew(q) {
		return p.pullRetained(ctx, r, q)
	}
	return p.decideAndRun(ctx, r, q)
}

// decideAndRun finds out what a request means, and makes that ready.
func (p *Puller) decideAndRun(ctx context.Context, r Request, q question) (imagepin.Entry, error) {
	v, err := p.decide(ctx, q)
	if err != nil {
		metrics.Pull(failure(ctx))
		return imagepin.Entry{}, complete(err, imagepin.CannotPullImageManifest, q.ref.String(), r.Runtime.Target)
	}
	return p.run(ctx, v.job(q.ref, r))
}

// job is what a verdict on a request makes to do.
func (v Verdict) job(ref reference.Named, r Request) job {
	return job{
		ref: ref, root: v.Root, host: v.Host, runtime: r.Runtime,
		session: v.session, credential: r.Credential, proof: v.proof,
		pin: v.Pin, registry: v.Registry, verified: v.verified,
		progress: r.Progress, done: r.Done,
	}
}

// Need is an image that something on the node is about to use.
type Need struct {
	// Ref is the reference under which it is wanted.
	Ref reference.Named
	// Root is what the reference means: the descriptor that the registry
	// once gave.
	Root ocispec.Descriptor
	// Runtime is whose target it is needed for.
	Runtime runtimeplatform.Runtime
	// Pin is what decided Root; nil where none did.
	Pin *pin.Pin
}

// MakeReady makes an image ready for another target: from what is on the node,
// and else from the registry, by digest and with the node's own credentials
// only. It goes on when its callers have gone, and a later call joins it.
//
// Errors are those of [Puller.Pull].
func (p *Puller) MakeReady(ctx context.Context, n Need) (imagepin.Entry, error) {
	if e, ok := p.ready(n.Ref, n.Root.Digest, n.Runtime.Target); ok && e.Ref == n.Ref.String() {
		return e, nil
	}
	key := n.Ref.String() + "\x00" + n.Root.Digest.String() + "\x00" + n.Runtime.Target.String()
	return p.makes.DoKept(ctx, key, func(ctx context.Context) (imagepin.Entry, error) {
		return p.run(ctx, job{ref: n.Ref, root: n.Root, runtime: n.Runtime, pin: n.Pin})
	})
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

// Use holds references, so that nothing removes what they mean until the
// returned function is called.
func (p *Puller) Use(ctx context.Context, refs ...string) (done func(), _ error) {
	return p.images.RLock(ctx, refs...)
}

// Exclude waits until nothing uses or pulls references, and keeps it so until
// the returned function is called.
func (p *Puller) Exclude(ctx context.Context, refs ...string) (done func(), _ error) {
	return p.images.Lock(ctx, refs...)
}

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
	registry *ocispec.Descriptor // what the registry says that ref means
	progress transfer.ProgressFunc
	done     func(metrics.Done)
	anew     bool // though it is recorded as ready
	counted  bool // already, as a part of the same pull
	verified bool // already
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

// makeKey verifies, makes, records and shows the key of a job. done is what had to
// be done, or how that failed.
func (p *Puller) makeKey(ctx context.Context, j job) (entry imagepin.Entry, done metrics.Done, _ error) {
	if !j.verified {
		if err := verify(ctx, p.Verifiers, j.ref.String(), j.root); err != nil {
			return imagepin.Entry{}, failure(ctx), complete(err, imagepin.ImageVerificationFailed, j.ref.String(), j.runtime.Target)
		}
	}
	start := time.Now()
	var (
		change store.Change
		err    error
	)
	record := func(ctx context.Context, e imagepin.Entry) error {
		return traced(ctx, "record", func(ctx context.Context) (err error) {
			entry, change, err = p.record(ctx, j, e)
			return err
		})
	}
	if known, ok := p.ready(j.ref, j.root.Digest, j.runtime.Target); ok && !j.anew {
		done = metrics.Nothing
		if err = record(ctx, known); change.Wrote {
			done = metrics.Recorded
		}
	} else {
		done = metrics.Unpacked
		err = withLease(ctx, p.Leases, func(ctx context.Context) error {
			made, fetched, err := p.make(ctx, j)
			if err != nil {
				return err
			}
			if fetched {
				done = metrics.Fetched
			}
			failpoint.Reach("pull.made")
			if err := record(ctx, made); err != nil {
				return err
			}
			failpoint.Reach("pull.recorded")
			return nil
		})
	}
	if err == nil && len(change.Names) > 0 {
		err = traced(ctx, "visible", func(ctx context.Context) error { return p.Visible(ctx, entry.ImageID, change.Names) })
		failpoint.Reach("pull.visible")
	}
	if err != nil {
		if j.pin != nil && gone(err) {
			return imagepin.Entry{}, failure(ctx), goneError(j.pin, j.runtime.Target.String(), p.tagNow(ctx, j), err)
		}
		return imagepin.Entry{}, failure(ctx), complete(err, imagepin.CannotPullImage, j.ref.String(), j.runtime.Target)
	}
	if change.Wrote {
		log.G(ctx).WithFields(log.Fields{
			"ref": entry.Ref, "target": entry.Target.String(), "digest": entry.Root.Digest,
			"manifest": entry.Manifest, "image": entry.ImageID, "host": entry.Host, "took": time.Since(start),
		}).Info("image is ready")
	}
	return entry, done, nil
}

// gone tells whether content that a pull needs is not to be had.
func gone(err error) bool {
	var e *imagepin.Error
	return errdefs.IsNotFound(err) && !(errors.As(err, &e) && e.Name == imagepin.NoMatchingPlatform)
}

// record writes an image that is in place under the job's reference and under
// its digest, so that it is found by either. A reference that is pinned, but not
// for this pull, stays with what it means.
func (p *Puller) record(ctx context.Context, j job, e imagepin.Entry) (imagepin.Entry, store.Change, error) {
	byDigest, err := reference.WithDigest(reference.TrimNamed(j.ref), j.root.Digest)
	if err != nil {
		return imagepin.Entry{}, store.Change{}, err
	}
	if j.pin == nil || !j.pin.Retain {
		p.RetainIfPinned(ctx, e)
	} else if err := p.retain(ctx, e); err != nil {
		return imagepin.Entry{}, store.Change{}, err
	}
	e.Ref = byDigest.String()
	entries := []imagepin.Entry{e}
	if ref := j.ref.String(); ref != e.Ref && !p.holdsStill(j) {
		e.Ref = ref
		entries = append(entries, e)
	}
	change, err := p.Store.Put(ctx, j.proof, entries...)
	if err != nil {
		return imagepin.Entry{}, store.Change{}, err
	}
	if j.proof != "" {
		if err := p.Pins.Prove(ctx, j.ref, j.root.Digest, j.proof); err != nil {
			return imagepin.Entry{}, store.Change{}, err
		}
	}
	return e, change, nil
}

// holdsStill tells whether a job must not move what its reference means for the
// target: it is pinned, and not by this job's pin.
func (p *Puller) holdsStill(j job) bool {
	if j.pin != nil || !p.Pins.Pinned(j.ref.String()) {
		return false
	}
	_, meant := p.Store.Get(imagepin.Key{Ref: j.ref.String(), Target: j.runtime.Target})
	return meant
}

// retain holds what a pin retains, while a lease of the caller still does.
func (p *Puller) retain(ctx context.Context, e imagepin.Entry) error {
	if !p.Pins.Retains(e.Root.Digest) || p.Retainer.Holds(e) {
		return nil
	}
	return p.Retainer.Retain(ctx, e)
}

// RetainIfPinned holds what somebody's pin retains, before it is recorded and
// while a lease of the caller still does. That it cannot is not the caller's
// failure, and is logged.
func (p *Puller) RetainIfPinned(ctx context.Context, e imagepin.Entry) {
	if err := p.retain(ctx, e); err != nil {
		log.G(ctx).WithError(err).WithField("ref", e.Ref).Warn("an image is not retained")
	}
}

// of gives what the node has of one digest of a reference. What another tool
// has put here is found by the tag alone.
func (p *Puller) of(ref reference.Named, root digest.Digest) []imagepin.Entry {
	entries := p.Store.ByRef(ref.String())
	if byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root); err == nil && byDigest.String() != ref.String() {
		entries = append(p.Store.ByRef(byDigest.String()), entries...)
	}
	return slices.DeleteFunc(entries, func(e imagepin.Entry) bool { return e.Root.Digest != root })
}

// retainHere holds what of one digest of a reference is on the node, and has the
// pins that retain it remember who may have it.
func (p *Puller) retainHere(ctx context.Context, ref reference.Named, root digest.Digest) error {
	byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root)
	if err != nil {
		return err
	}
	unlock, err := p.images.RLock(ctx, ref.String(), byDigest.String())
	if err != nil {
		return err
	}
	defer unlock()
	var proofs []string
	for _, e := range p.of(ref, root) {
		proofs = append(proofs, p.Store.Proofs(e.Record)...)
		if p.Retainer.Holds(e) {
			continue
		}
		if err := p.Retainer.Retain(ctx, e); err != nil {
			return err
		}
	}
	return p.Pins.Prove(ctx, ref, root, proofs...)
}

// PinUse is for a container that is made without a pull: it gives the digest
// that a reference means for the container's pod, where root is what the caller
// was given. The first use decides. Without a scope it is root.
func (p *Puller) PinUse(ctx context.Context, ref reference.Named, pod policy.Pod, root ocispec.Descriptor) (ocispec.Descriptor, *pin.Pin, error) {
	d := p.Decide(ctx, ref, pod)
	if d.Scope == "" {
		return root, nil, nil
	}
	id := pin.ID{Scope: d.Scope, Ref: ref.String()}
	if _, ok := p.Pins.Get(id); !ok && d.Retain {
		// First, so that there is no pin where there is no room.
		release, err := p.Retainer.Reserve(nil, p.of(ref, root.Digest)...)
		if err != nil {
			return root, nil, err
		}
		defer release()
	}
	held, err := p.Pins.Make(ctx, id, root, pin.ByUse, d.Retain)
	if err != nil {
		return root, nil, err
	}
	if held.Retain {
		if err := p.retainHere(ctx, ref, held.Root.Digest); err != nil {
			return root, nil, err
		}
	}
	return held.Root, &held, p.Pins.Touch(ctx, held.ID)
}
