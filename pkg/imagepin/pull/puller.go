package pull

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/flight"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Puller serves requests for images: it resolves a reference to a digest, and has its Maker pull and unpack that
// digest. It merges concurrent identical requests. It is safe for concurrent use.
type Puller struct {
	decider  *decide.Decider
	maker    *Maker
	observer Observer
	// identity distinguishes credentials, see [resolve.Prover.Identity].
	identity func(resolve.Credential) string

	pulls    flight.Group[Pulled]
	makes    flight.Group[Pulled]
	verdicts flight.Group[struct{}]
	unshared atomic.Uint64
	meters   meters
}

// NewPuller returns a Puller. identity must return the same text only for equal credentials.
func NewPuller(d *decide.Decider, m *Maker, o Observer, identity func(resolve.Credential) string) *Puller {
	return &Puller{decider: d, maker: m, observer: o, identity: identity}
}

// Request is a request for a pull.
type Request struct {
	// Ref is the reference in the form that the caller used.
	Ref string
	// Runtime has the target to unpack the image for.
	Runtime runtimeplatform.Runtime
	// Credential is the caller's. The zero value means the node's own credentials.
	Credential resolve.Credential
	// Pod is the pod that the pull is for. The zero value means no pod.
	Pod policy.Pod
	// Progress is called with the progress of the pull. A pull with Progress is not merged with others.
	Progress transfer.ProgressFunc
	// OutsideLock allows an image that the node's lock does not name, whatever the rules say.
	OutsideLock bool
	// Running returns the digest that a container of the pod has for Ref, or "". It is called, and decides, if the revision of the pod
	// has no pin, see [decide.Request.Unpinned]. It may be nil.
	Running func(context.Context) (digest.Digest, error)
}

// Pulled is an image that is ready.
type Pulled struct {
	imagepin.Entry
	// Outcome is what the pull had to do.
	Outcome Outcome
	// Fallback is why the registry did not resolve the reference, if the image on the node was used for this reason.
	Fallback error
	// OtherPlatform is the platform of the image, if its reference resolves to the manifest of one platform and this is not the
	// target's. It is only known for pulls with [Request.Progress], and for those that wrote something.
	OtherPlatform string
}

// Pull pulls and unpacks the image that a reference resolves to, and returns once containerd's CRI service has the
// image. It stops when all its callers have gone, and leaves only what a next pull continues with, for a day.
//
// Errors are [imagepin.Error]: InvalidReference (ErrInvalidArgument), NotInLock (ErrPermissionDenied), PullTimedOut
// (context.DeadlineExceeded) after [Settings.Timeout], and the errors of [decide.Decider.Decide] and [Maker.Make].
func (p *Puller) Pull(ctx context.Context, r Request) (Pulled, error) {
	return p.pullIn(ctx, r, p.pulls.Do)
}

// PullDetached is [Puller.Pull] for a caller that will call again: the pull continues when its callers have gone, and a
// later call joins it.
func (p *Puller) PullDetached(ctx context.Context, r Request) (Pulled, error) {
	return p.pullIn(ctx, r, p.pulls.DoDetached)
}

func (p *Puller) pullIn(ctx context.Context, r Request, do func(context.Context, string, func(context.Context) (Pulled, error)) (Pulled, error)) (Pulled, error) {
	q, err := p.ask(ctx, r)
	if err != nil {
		return Pulled{}, err
	}
	return do(ctx, p.key(q, r), func(ctx context.Context) (Pulled, error) { return p.pull(ctx, q, r) })
}

// ask asks what the policy and the cluster say about a request.
func (p *Puller) ask(ctx context.Context, r Request) (decide.Request, error) {
	ref, err := imagepin.ParseReference(r.Ref)
	if err != nil {
		return decide.Request{}, err
	}
	q, err := p.decider.Ask(ctx, decide.Call{Ref: ref, Credential: r.Credential, Pod: r.Pod, Target: r.Runtime.Target, OutsideLock: r.OutsideLock, Running: r.Running})
	var known *imagepin.Error
	if err != nil && !(errors.As(err, &known) && known.Reason == imagepin.NotInLock) { // which is so for all targets
		err = complete(err, imagepin.CannotPullImageManifest, ref.String(), r.Runtime.Target)
	}
	return q, err
}

// key returns the same text for identical pulls only. A pull that begins after a pin has moved does not join a pull
// that began before.
func (p *Puller) key(q decide.Request, r Request) string {
	key := q.Key() + "\x00" + p.identity(q.Credential)
	if r.Progress != nil {
		key += "\x00" + fmt.Sprint(p.unshared.Add(1))
	}
	return key
}

// pull runs a pull and reports its outcome to the observer.
func (p *Puller) pull(ctx context.Context, q decide.Request, r Request) (pulled Pulled, err error) {
	ctx, end := startStep(ctx, "pull", tracing.WithAttribute("image.ref", q.Ref.String()), tracing.WithAttribute("image.target", q.Target.String()))
	defer func() { end(err) }()
	pulled, err = p.within(ctx, q.Ref.String(), q.Target, func(ctx context.Context, m *meter) (Pulled, error) {
		return p.decideAndMake(ctx, q, r, m)
	})
	if err != nil {
		pulled.Outcome = failure(ctx)
	}
	p.observer.Pulled(pulled.Outcome)
	return pulled, err
}

// decideAndMake resolves a reference and makes the result ready. What the reference resolved to before can be removed
// meanwhile.
func (p *Puller) decideAndMake(ctx context.Context, q decide.Request, r Request, m *meter) (Pulled, error) {
	v, err := p.decider.Decide(ctx, q)
	if err != nil {
		return Pulled{}, complete(err, imagepin.CannotPullImageManifest, q.Ref.String(), q.Target)
	}
	pulled, err := pulledOf(p.maker.Make(ctx, Job{Verdict: v, Runtime: r.Runtime, Progress: r.Progress, meter: m}))
	if q.Running != "" && v.Root.Digest == q.Running && v.Registry == nil && refused(err) {
		q.Running = "" // as CreateContainer, which does not pin it. With the pin, no pull could succeed
		return p.decideAndMake(ctx, q, r, m)
	}
	if err == nil && (r.Progress != nil || pulled.Outcome != UpToDate) {
		pulled.OtherPlatform = p.maker.unpacker.otherPlatform(ctx, pulled.Entry, r.Runtime)
	}
	if v.Fallback() {
		p.observer.FallbackUsed()
		pulled.Fallback = v.RegistryError
	}
	return pulled, err
}

// refused reports whether the image verifiers do not accept an image.
func refused(err error) bool {
	var known *imagepin.Error
	return errors.As(err, &known) && known.Reason == imagepin.ImageVerificationFailed
}

func pulledOf(e imagepin.Entry, o Outcome, err error) (Pulled, error) {
	return Pulled{Entry: e, Outcome: o}, err
}

// Need describes an image that a call on the node is about to use.
type Need struct {
	// Ref is the reference to record the image under.
	Ref reference.Named
	// Root is the descriptor that the reference resolves to, as the registry returned it.
	Root ocispec.Descriptor
	// Runtime has the target to unpack the image for.
	Runtime runtimeplatform.Runtime
	// Pin is the pin that decided Root, or nil.
	Pin *pin.Pin
}

// MakeReady makes an image ready for a target. It uses the content on the node, and otherwise fetches from the
// registry, by digest and with the node's own credentials only. It continues when its callers have gone, and a later
// call joins it. If a pull moves the reference to another digest in the meantime, that digest stays, and the image is
// recorded under its own digest.
//
// It fails as [Maker.Make] does.
func (p *Puller) MakeReady(ctx context.Context, n Need) (imagepin.Entry, error) {
	if e, ok := p.maker.ready(n.Ref, n.Root.Digest, n.Runtime.Target); ok && e.Ref == n.Ref.String() {
		return e, nil
	}
	key := n.Ref.String() + "\x00" + n.Root.Digest.String() + "\x00" + n.Runtime.Target.String()
	made, err := p.makes.DoDetached(ctx, key, func(ctx context.Context) (Pulled, error) {
		return p.make(ctx, Job{Verdict: decide.Verdict{Ref: n.Ref, Root: n.Root, Pin: n.Pin}, Runtime: n.Runtime, Record: Keep})
	})
	return made.Entry, err
}

// make runs a job and reports its outcome to the observer.
func (p *Puller) make(ctx context.Context, j Job) (Pulled, error) {
	made, err := p.within(ctx, j.Ref.String(), j.Runtime.Target, func(ctx context.Context, m *meter) (Pulled, error) {
		j.meter = m
		return pulledOf(p.maker.Make(ctx, j))
	})
	p.observer.Pulled(made.Outcome)
	return made, err
}

// Repair makes an image ready that has lost a part, and reports the outcome to the observer. It uses the content on the node, and
// otherwise fetches from the registry with the node's own credentials. It does nothing for a key that is not recorded any more, or
// whose tag has another digest now. It fails as [Maker.Make] does, and with ErrNotFound if no runtime handler has the target.
func (p *Puller) Repair(ctx context.Context, e imagepin.Entry) (Outcome, error) {
	repaired, err := p.within(ctx, e.Ref, e.Target, func(ctx context.Context, m *meter) (repaired Pulled, err error) {
		repaired.Outcome, err = p.maker.repair(ctx, e, m)
		return repaired, err
	})
	p.observer.Pulled(repaired.Outcome)
	if repaired.Outcome == Failed {
		p.observer.RepairFailed()
	}
	return repaired.Outcome, err
}

// RepairBlob is [Maker.RepairBlob]. It reports a failure to the observer, unless the context is canceled.
func (p *Puller) RepairBlob(ctx context.Context, e imagepin.Entry, d digest.Digest) error {
	err := p.maker.RepairBlob(ctx, e, d)
	if err != nil && failure(ctx) == Failed {
		p.observer.RepairFailed()
	}
	return err
}

// errEnded is the error of pulls after [Puller.Shutdown].
var errEnded = fmt.Errorf("imagepin does not pull images until containerd restarts: %w", errdefs.ErrFailedPrecondition)

// Shutdown makes every later call fail with ErrFailedPrecondition, cancels running pulls, also those whose callers have
// gone, and waits for them.
func (p *Puller) Shutdown(ctx context.Context) error {
	return errors.Join(p.pulls.Shutdown(ctx, errEnded), p.makes.Shutdown(ctx, errEnded), p.verdicts.Shutdown(ctx, errEnded))
}
