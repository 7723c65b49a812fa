package pull

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/core/transfer/local"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/flight"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
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
	blobs    *keyed.Mutex  // of blobs and snapshots being made
	images   keyed.RWMutex // by reference: read while in use, written to remove
	pulls    flight.Group[imagepin.Entry]
	makes    flight.Group[imagepin.Entry]
}

// New makes a puller.
func New(c Config) *Puller {
	p := &Puller{Config: c, blobs: &keyed.Mutex{}}
	p.transfer = local.NewTransferService(c.Content, nil, local.TransferConfig{
		Leases:                     c.Leases,
		MaxConcurrentDownloads:     c.MaxConcurrentDownloads,
		MaxConcurrentUnpacks:       c.MaxConcurrentUnpacks,
		ConcurrentLayerFetchBuffer: c.ConcurrentLayerFetchBuffer,
		DuplicationSuppressor:      p.blobs,
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
	return p.pulls.DoKept(ctx, p.pullKey(ref, r), func(ctx context.Context) (imagepin.Entry, error) {
		return p.pull(ctx, ref, r)
	})
}

func (p *Puller) pullKey(ref reference.Named, r Request) string {
	return ref.String() + "\x00" + r.Runtime.Target.String() + "\x00" + p.Resolver.Prover.Identity(r.Credential)
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

func (p *Puller) pull(ctx context.Context, ref reference.Named, r Request) (imagepin.Entry, error) {
	unlock, err := p.images.RLock(ctx, ref.String())
	if err != nil {
		return imagepin.Entry{}, err
	}
	defer unlock()
	resolved, err := p.resolve(ctx, ref, r.Credential)
	if err != nil {
		return imagepin.Entry{}, complete(err, imagepin.CannotPullImageManifest, ref.String(), r.Runtime.Target)
	}
	j := job{
		ref: ref, root: resolved.Root, host: resolved.Host, runtime: r.Runtime,
		session: resolved.Session, credential: r.Credential,
		proof: p.Resolver.Proof(ref, r.Credential, resolved.Root.Digest),
	}
	return p.run(ctx, j)
}

// resolve asks the registry what ref means. It does not where ref is a digest
// that is here, and the credential (or none) has been accepted for it before.
func (p *Puller) resolve(ctx context.Context, ref reference.Named, c resolve.Credential) (resolve.Resolved, error) {
	if d, ok := ref.(reference.Digested); ok && p.Store.HasProof(p.Resolver.Proofs(ref, c, d.Digest())...) {
		if es := p.Store.ByRef(ref.String()); len(es) > 0 {
			return resolve.Resolved{Root: es[0].Root}, nil
		}
	}
	return p.Resolver.Resolve(ctx, ref, c)
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
		return p.run(ctx, job{ref: n.Ref, root: n.Root, runtime: n.Runtime})
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
}

func (p *Puller) run(ctx context.Context, j job) (imagepin.Entry, error) {
	if err := verify(ctx, p.Verifiers, j.ref.String(), j.root); err != nil {
		return imagepin.Entry{}, complete(err, imagepin.ImageVerificationFailed, j.ref.String(), j.runtime.Target)
	}
	start := time.Now()
	var (
		change store.Change
		entry  imagepin.Entry
		err    error
	)
	if known, ok := p.ready(j.ref, j.root.Digest, j.runtime.Target); ok {
		entry, change, err = p.record(ctx, j, known)
	} else {
		err = withLease(ctx, p.Leases, func(ctx context.Context) error {
			made, err := p.make(ctx, j)
			if err != nil {
				return err
			}
			entry, change, err = p.record(ctx, j, made)
			return err
		})
	}
	if err == nil && len(change.Names) > 0 {
		err = p.Visible(ctx, entry.ImageID, change.Names)
	}
	if err != nil {
		return imagepin.Entry{}, complete(err, imagepin.CannotPullImage, j.ref.String(), j.runtime.Target)
	}
	if change.Wrote {
		log.G(ctx).WithFields(log.Fields{
			"ref": entry.Ref, "target": entry.Target.String(), "digest": entry.Root.Digest,
			"manifest": entry.Manifest, "image": entry.ImageID, "host": entry.Host, "took": time.Since(start),
		}).Info("image is ready")
	}
	return entry, nil
}

// record writes an image that is in place under the job's reference and under
// its digest, so that it is found by either.
func (p *Puller) record(ctx context.Context, j job, e imagepin.Entry) (imagepin.Entry, store.Change, error) {
	byDigest, err := reference.WithDigest(reference.TrimNamed(j.ref), j.root.Digest)
	if err != nil {
		return imagepin.Entry{}, store.Change{}, err
	}
	e.Ref = byDigest.String()
	entries := []imagepin.Entry{e}
	if j.ref.String() != e.Ref {
		e.Ref = j.ref.String()
		entries = append(entries, e)
	}
	change, err := p.Store.Put(ctx, j.proof, entries...)
	if err != nil {
		return imagepin.Entry{}, store.Change{}, err
	}
	return e, change, nil
}
