package pull

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/flight"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Puller answers requests for images: it has decided which digest a reference means, and has that made. Concurrent
// identical requests are one. It is safe for concurrent use.
type Puller struct {
	decider  *decide.Decider
	maker    *Maker
	observer Observer
	// identity tells credentials apart, see [resolve.Prover.Identity].
	identity func(resolve.Credential) string

	pulls    flight.Group[Pulled]
	makes    flight.Group[Pulled]
	unshared atomic.Uint64
}

// NewPuller returns a puller. identity returns a text that is the same for equal credentials only.
func NewPuller(d *decide.Decider, m *Maker, o Observer, identity func(resolve.Credential) string) *Puller {
	return &Puller{decider: d, maker: m, observer: o, identity: identity}
}

// Request is one pull.
type Request struct {
	// Ref is the reference as the caller wrote it.
	Ref string
	// Runtime is the one whose target the image is made ready for.
	Runtime runtimeplatform.Runtime
	// Credential is the caller's; none is the node's own.
	Credential resolve.Credential
	// Pod is the pod that the pull is for; the zero value is none.
	Pod policy.Pod
	// Progress is notified of how far the pull is. A pull with it is not shared.
	Progress transfer.ProgressFunc
}

// Pulled is an image that is ready.
type Pulled struct {
	imagepin.Entry
	// Outcome is what had to be done.
	Outcome Outcome
}

// Pull makes what a reference means now ready for a target, and returns once containerd's CRI service knows it. A pull
// whose callers have all gone stops and leaves nothing.
//
// Errors are [imagepin.Error]: InvalidReference (ErrInvalidArgument), those of [decide.Decider.Decide] and of
// [Maker.Make].
func (p *Puller) Pull(ctx context.Context, r Request) (Pulled, error) {
	q, err := p.question(ctx, r)
	if err != nil {
		return Pulled{}, err
	}
	return p.pulls.Do(ctx, p.key(q, r), func(ctx context.Context) (Pulled, error) { return p.pull(ctx, q, r) })
}

// PullDetached is [Puller.Pull] for a caller that will call again: the pull goes on when its callers have gone, and a
// later call joins it.
func (p *Puller) PullDetached(ctx context.Context, r Request) (Pulled, error) {
	q, err := p.question(ctx, r)
	if err != nil {
		return Pulled{}, err
	}
	return p.pulls.DoDetached(ctx, p.key(q, r), func(ctx context.Context) (Pulled, error) { return p.pull(ctx, q, r) })
}

// question is what a request asks to be decided.
func (p *Puller) question(ctx context.Context, r Request) (decide.Question, error) {
	ref, err := imagepin.ParseReference(r.Ref)
	if err != nil {
		return decide.Question{}, err
	}
	return decide.Question{
		Ref: ref, Credential: r.Credential, Policy: p.decider.PolicyFor(ctx, ref, r.Pod), Target: r.Runtime.Target,
	}, nil
}

// key tells pulls apart that are not identical. A pull that begins after a pin has moved does not join one from before.
func (p *Puller) key(q decide.Question, r Request) string {
	key := []string{
		q.Ref.String(), q.Target.String(), p.identity(q.Credential),
		string(q.Policy.Behavior), string(q.Policy.Scope), p.decider.Pinned(q).String(),
	}
	if r.Progress != nil {
		key = append(key, fmt.Sprint(p.unshared.Add(1)))
	}
	return strings.Join(key, "\x00")
}

// pull decides and makes, and has that observed.
func (p *Puller) pull(ctx context.Context, q decide.Question, r Request) (pulled Pulled, err error) {
	err = traced(ctx, "pull", func(ctx context.Context) error {
		pulled, err = p.decideAndMake(ctx, q, r)
		if err != nil {
			pulled.Outcome = failure(ctx)
		}
		p.observer.Pulled(pulled.Outcome)
		return err
	}, tracing.WithAttribute("image.ref", q.Ref.String()), tracing.WithAttribute("image.target", q.Target.String()))
	return pulled, err
}

// decideAndMake finds out what a reference means, and makes that ready. Nothing removes the reference meanwhile.
func (p *Puller) decideAndMake(ctx context.Context, q decide.Question, r Request) (Pulled, error) {
	unlock, err := p.maker.c.Locks.ForUse(ctx, q.Ref.String())
	if err != nil {
		return Pulled{}, err
	}
	defer unlock()
	v, err := p.decider.Decide(ctx, q)
	if err != nil {
		return Pulled{}, complete(err, imagepin.CannotPullImageManifest, q.Ref.String(), q.Target)
	}
	if v.Fallback() {
		p.observer.FellBack()
	}
	return pulledOf(p.maker.Make(ctx, Job{Verdict: v, Runtime: r.Runtime, Progress: r.Progress}))
}

func pulledOf(e imagepin.Entry, o Outcome, err error) (Pulled, error) {
	return Pulled{Entry: e, Outcome: o}, err
}

// Need is an image that something on the node is about to use.
type Need struct {
	// Ref is the reference under which it is wanted.
	Ref reference.Named
	// Root is what the reference means: the descriptor that the registry once gave.
	Root ocispec.Descriptor
	// Runtime is the one whose target it is needed for.
	Runtime runtimeplatform.Runtime
	// Pin is what decided Root; nil where none did.
	Pin *pin.Pin
}

// MakeReady makes an image ready for another target: from what is on the node, and else from the registry, by digest and
// with the node's own credentials only. It goes on when its callers have gone, and a later call joins it.
//
// Errors are those of [Maker.Make].
func (p *Puller) MakeReady(ctx context.Context, n Need) (imagepin.Entry, error) {
	if e, ok := p.maker.ready(n.Ref, n.Root.Digest, n.Runtime.Target); ok && e.Ref == n.Ref.String() {
		return e, nil
	}
	key := n.Ref.String() + "\x00" + n.Root.Digest.String() + "\x00" + n.Runtime.Target.String()
	made, err := p.makes.DoDetached(ctx, key, func(ctx context.Context) (Pulled, error) {
		return p.make(ctx, Job{Verdict: decide.Verdict{Ref: n.Ref, Root: n.Root, Pin: n.Pin}, Runtime: n.Runtime})
	})
	return made.Entry, err
}

// make has a job made, and observed as a pull.
func (p *Puller) make(ctx context.Context, j Job) (Pulled, error) {
	made, err := pulledOf(p.maker.Make(ctx, j))
	p.observer.Pulled(made.Outcome)
	return made, err
}

// Remake is [Maker.Remake], observed as a pull.
func (p *Puller) Repair(ctx context.Context, e imagepin.Entry) (Outcome, error) {
	outcome, err := p.maker.Repair(ctx, e)
	p.observer.Pulled(outcome)
	return outcome, err
}

// errEnded is what pulls fail with after the end.
var errEnded = fmt.Errorf("imagepin makes no more images ready until containerd is restarted: %w", errdefs.ErrFailedPrecondition)

// End makes every later pull fail with ErrFailedPrecondition, cancels those that are under way, also those whose callers
// have gone, and waits until nothing of them is left.
func (p *Puller) End(ctx context.Context) error {
	return errors.Join(p.pulls.End(ctx, errEnded), p.makes.End(ctx, errEnded))
}
