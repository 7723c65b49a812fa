package pull

import (
	"context"
	"fmt"
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
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
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
	Decider  *decide.Decider
	Proofs   decide.Proofs
	Resolver *resolve.Resolver
	Runtimes *runtimeplatform.Set
	Pins     *pin.Store
	Retained Retained
	// Verifiers are the image verifier plugins by name.
	Verifiers map[string]imageverifier.ImageVerifier
	// UnpackPlatforms has one entry per snapshotter; its Platform has to match all.
	UnpackPlatforms []unpack.Platform
	// Visible waits until the CRI service behind knows the image called id under
	// every name, as long as it is wanted under that name.
	Visible func(ctx context.Context, id digest.Digest, names []string, wanted func(name string) bool) error
	// Garbage has what nothing holds any more collected, and does not wait for it;
	// nil leaves that to containerd.
	Garbage func()

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

// Retained is the content that pins retain. [retain.Retainer] is one.
type Retained interface {
	// Sync brings what is retained of digests into line with pins and images.
	Sync(ctx context.Context, roots ...digest.Digest) error
	// Synced reports whether there is nothing to do for a digest.
	Synced(root digest.Digest) bool
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
	served   served // which blobs came from which repository
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
	q, err := p.question(ctx, r)
	if err != nil {
		return imagepin.Entry{}, err
	}
	return p.pulls.Do(ctx, p.pullKey(q, r), func(ctx context.Context) (imagepin.Entry, error) { return p.pull(ctx, q, r) })
}

// PullDetached is [Puller.Pull] for a caller that will call again: the pull goes on when its callers have gone, and a
// later call joins it.
func (p *Puller) PullDetached(ctx context.Context, r Request) (imagepin.Entry, error) {
	q, err := p.question(ctx, r)
	if err != nil {
		return imagepin.Entry{}, err
	}
	return p.pulls.DoDetached(ctx, p.pullKey(q, r), func(ctx context.Context) (imagepin.Entry, error) { return p.pull(ctx, q, r) })
}

// question is what a request asks to be decided.
func (p *Puller) question(ctx context.Context, r Request) (decide.Question, error) {
	ref, err := imagepin.ParseReference(r.Ref)
	if err != nil {
		return decide.Question{}, err
	}
	return decide.Question{
		Ref: ref, Credential: r.Credential, Policy: p.Decider.PolicyFor(ctx, ref, r.Pod), Target: r.Runtime.Target,
	}, nil
}

// pullKey tells pulls apart that are not identical. A pull that begins after a pin has moved does not join one from
// before.
func (p *Puller) pullKey(q decide.Question, r Request) string {
	key := []string{
		q.Ref.String(), q.Target.String(), p.Resolver.Prover.Identity(q.Credential),
		string(q.Policy.Behavior), string(q.Policy.Scope), p.Decider.Pinned(q).String(),
	}
	if r.Progress != nil {
		key = append(key, fmt.Sprint(p.unshared.Add(1)))
	}
	return strings.Join(key, "\x00")
}

func (p *Puller) pull(ctx context.Context, q decide.Question, r Request) (e imagepin.Entry, err error) {
	err = traced(ctx, "pull", func(ctx context.Context) error {
		e, err = p.decideAndMake(ctx, q, r)
		return err
	}, tracing.WithAttribute("image.ref", q.Ref.String()), tracing.WithAttribute("image.target", q.Target.String()))
	return e, err
}

// decideAndMake finds out what a reference means, and makes that ready. Nothing removes the reference meanwhile.
func (p *Puller) decideAndMake(ctx context.Context, q decide.Question, r Request) (imagepin.Entry, error) {
	unlock, err := p.images.RLock(ctx, q.Ref.String())
	if err != nil {
		metrics.Pull(failure(ctx))
		return imagepin.Entry{}, err
	}
	defer unlock()
	v, err := p.Decider.Decide(ctx, q)
	if err != nil {
		metrics.Pull(failure(ctx))
		return imagepin.Entry{}, complete(err, imagepin.CannotPullImageManifest, q.Ref.String(), q.Target)
	}
	if v.Fallback() {
		metrics.Fallback()
	}
	return p.run(ctx, job{Verdict: v, runtime: r.Runtime, progress: r.Progress, done: r.Done})
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
	return p.makes.DoDetached(ctx, key, func(ctx context.Context) (imagepin.Entry, error) {
		return p.run(ctx, job{Verdict: decide.Verdict{Ref: n.Ref, Root: n.Root, Pin: n.Pin}, runtime: n.Runtime})
	})
}

// LockForUse keeps what references mean from removal until done is called.
func (p *Puller) LockForUse(ctx context.Context, refs ...string) (done func(), _ error) {
	return p.images.RLock(ctx, refs...)
}

// LockForRemoval waits until nothing uses or pulls references, and keeps it so until done is called.
func (p *Puller) LockForRemoval(ctx context.Context, refs ...string) (done func(), _ error) {
	return p.images.Lock(ctx, refs...)
}
