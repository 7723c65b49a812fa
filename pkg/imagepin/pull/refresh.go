package pull

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Refreshed is what a refresh did.
type Refreshed struct {
	Ref      reference.Named
	Registry ocispec.Descriptor // what the tag means now
	Pins     []RefreshedPin
	Targets  []RefreshedTarget
}

// RefreshedPin is a pin before and after.
type RefreshedPin struct {
	ID            pin.ID
	Before, After digest.Digest
}

// RefreshedTarget is what a reference means for a target before and after. Err
// is why it could not be made ready.
type RefreshedTarget struct {
	Target        runtimeplatform.Target
	Before, After digest.Digest
	Err           error
}

// Changed tells whether anything is another digest than before.
func (r Refreshed) Changed() bool {
	for _, p := range r.Pins {
		if p.Before != p.After {
			return true
		}
	}
	for _, t := range r.Targets {
		if t.Before != t.After {
			return true
		}
	}
	return false
}

// Failed gives the first error of a target.
func (r Refreshed) Failed() error {
	for _, t := range r.Targets {
		if t.Err != nil {
			return t.Err
		}
	}
	return nil
}

// Refresh asks the registry anew what a tag means, makes that ready for every
// target that has the tag, and then moves its pins: those of one scope, or all
// where scope is empty. Where a target cannot be made ready, no pin moves, and
// nothing that is here is lost.
//
// It fails with ErrNotFound where the node has neither a pin nor a key of the
// reference, and as [resolve.Resolver.Resolve] does.
func (p *Puller) Refresh(ctx context.Context, name string, scope policy.Scope, c resolve.Credential) (Refreshed, error) {
	ref, err := ParseReference(name)
	if err != nil {
		return Refreshed{}, err
	}
	if _, ok := ref.(reference.Digested); ok {
		return Refreshed{}, imagepin.Invalid("reference", ref.String(), errIsDigest)
	}
	unlock, err := p.images.RLock(ctx, ref.String())
	if err != nil {
		return Refreshed{}, err
	}
	defer unlock()
	var pins []pin.Pin
	for _, held := range p.Pins.Scopes(ref.String()) {
		if scope == "" || held.Scope == scope {
			pins = append(pins, held)
		}
	}
	had := p.Store.ByRef(ref.String())
	if len(pins) == 0 && (scope != "" || len(had) == 0) {
		return Refreshed{}, neverHad(ref, scope)
	}
	found, err := p.Resolver.Resolve(ctx, ref, c)
	if err != nil {
		return Refreshed{}, err
	}
	r := Refreshed{Ref: ref, Registry: found.Root}
	byDigest, err := reference.WithDigest(reference.TrimNamed(ref), found.Root.Digest)
	if err != nil {
		return Refreshed{}, err
	}
	j := job{
		ref: byDigest, root: found.Root, host: found.Host, session: found.Session, credential: c,
		proof: p.Resolver.Proof(ref, c, found.Root.Digest), registry: &found.Root,
	}
	if !retains(pins) || !p.Retainer.Limited() {
		err := p.refreshTo(ctx, j, ref, pins, had, &r)
		return r, err
	}
	err = p.withLease(ctx, func(ctx context.Context) error {
		release, verified, err := p.roomToMove(ctx, j, pins, had)
		if err != nil {
			return err
		}
		defer release()
		j.verified = verified
		return p.refreshTo(ctx, j, ref, pins, had, &r)
	})
	return r, err
}

// roomToMove makes sure that there is room for what pins retain once they have
// moved to a job's digest. What else keeps the job from being done is said when
// it is.
func (p *Puller) roomToMove(ctx context.Context, j job, pins []pin.Pin, had []imagepin.Entry) (release func(), verified bool, _ error) {
	nothing := func() {}
	var runtimes []runtimeplatform.Runtime
	for _, e := range had {
		if rt, ok := p.Runtimes.ForTarget(e.Target); ok {
			runtimes = append(runtimes, rt)
		}
	}
	if verify(ctx, p.Verifiers, j.ref.String(), j.root) != nil {
		return nothing, false, nil
	}
	release, err := p.reserve(ctx, j, p.releasedBy(pins, j.root.Digest), runtimes...)
	var known *imagepin.Error
	switch {
	case err == nil:
		return release, true, nil
	case errors.As(err, &known) && known.Name == imagepin.RetainLimitReached:
		return nil, false, err
	}
	return nothing, true, nil
}

// refreshTo makes a job ready for every target that had the tag, and then moves
// pins and tag to it.
func (p *Puller) refreshTo(ctx context.Context, j job, ref reference.Named, pins []pin.Pin, had []imagepin.Entry, r *Refreshed) error {
	for _, e := range had {
		t := RefreshedTarget{Target: e.Target, Before: e.Root.Digest, After: e.Root.Digest}
		j.runtime, _ = p.Runtimes.ForTarget(e.Target)
		_, t.Err = p.run(ctx, j)
		r.Targets = append(r.Targets, t)
	}
	if r.Failed() != nil {
		for _, held := range pins {
			r.Pins = append(r.Pins, RefreshedPin{ID: held.ID, Before: held.Root.Digest, After: held.Root.Digest})
		}
		return nil
	}
	failpoint.Reach("refresh.pulled")
	return p.moveTo(ctx, j, ref, pins, had, r)
}

var errIsDigest = errors.New("is a digest, which means what it says: only a tag can be pinned or refreshed")

func neverHad(ref reference.Named, scope policy.Scope) error {
	if scope != "" {
		return &imagepin.Error{
			Name: imagepin.UnknownPin, Ref: ref.String(), Class: errdefs.ErrNotFound,
			What: fmt.Sprintf("it has no pin in scope %s", scope), Do: "imagepin pin ls lists the pins of this node.",
		}
	}
	return &imagepin.Error{
		Name: imagepin.UnknownImage, Ref: ref.String(), Class: errdefs.ErrNotFound,
		What: "it was never pulled on this node, and has no pin", Do: "Pull it: imagepin pull " + ref.String(),
	}
}

// moveTo moves pins, and what a tag means for the targets, to what a job has
// made ready.
func (p *Puller) moveTo(ctx context.Context, j job, ref reference.Named, pins []pin.Pin, had []imagepin.Entry, r *Refreshed) error {
	for _, held := range pins {
		by := pin.ByRefresh
		if held.By == pin.ByOperator {
			by = held.By // it goes on to hold whatever the rules say
		}
		moved, err := p.Pins.Move(ctx, held.ID, j.root, by, held.Retain)
		if err != nil {
			return err
		}
		failpoint.Reach("refresh.pinned")
		if err := p.retainPin(ctx, ref, moved); err != nil && !noRoom(err) {
			return err
		}
		j.pin = &moved
		r.Pins = append(r.Pins, RefreshedPin{ID: held.ID, Before: held.Root.Digest, After: moved.Root.Digest})
	}
	j.ref, j.counted, j.verified = ref, true, false
	for i, e := range had {
		j.runtime, _ = p.Runtimes.ForTarget(e.Target)
		moved, err := p.run(ctx, j)
		if err != nil {
			return err
		}
		failpoint.Reach("refresh.moved")
		r.Targets[i].After = moved.Root.Digest
	}
	return nil
}

// SetPin decides by hand which digest a tag means in a scope. The registry is
// asked for the digest, unless it is on the node and the credential is proved
// for it. previous is what the pin said before; empty where it is new.
func (p *Puller) SetPin(ctx context.Context, name string, scope policy.Scope, d digest.Digest, retain bool, c resolve.Credential) (_ pin.Pin, previous digest.Digest, _ error) {
	ref, err := ParseReference(name)
	if err != nil {
		return pin.Pin{}, "", err
	}
	if _, ok := ref.(reference.Digested); ok {
		return pin.Pin{}, "", imagepin.Invalid("reference", ref.String(), errIsDigest)
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(ref), d)
	if err != nil {
		return pin.Pin{}, "", imagepin.Invalid("digest", d.String(), err)
	}
	v, err := p.decideDigest(ctx, question{ref: byDigest, credential: c}, d)
	if err != nil {
		return pin.Pin{}, "", err
	}
	id := pin.ID{Scope: scope, Ref: ref.String()}
	retain = retain || p.Policy.Rule(ref.String()).Retain
	var moving []pin.Pin
	if old, ok := p.Pins.Get(id); ok {
		previous, moving = old.Root.Digest, append(moving, old)
	}
	if retain {
		// First, so that the pin stays as it was where there is no room.
		release, err := p.Retainer.Reserve(p.releasedBy(moving, d), p.inRepository(ref, d)...)
		if err != nil {
			return pin.Pin{}, "", err
		}
		defer release()
	}
	held, err := p.Pins.Move(ctx, id, v.Root, pin.ByOperator, retain)
	if err != nil {
		return pin.Pin{}, "", err
	}
	if !retain {
		return held, previous, p.Retainer.ReleaseAllBut(context.WithoutCancel(ctx), p.Pins.Retains)
	}
	if err := p.retainPin(ctx, ref, held); err != nil || v.proof == "" {
		return held, previous, err
	}
	return held, previous, p.Pins.Prove(ctx, ref, d, v.proof)
}

// WouldPull says what a pull for a target would run, and changes nothing. scope is that of
// the pods it is for; empty where they have none.
func (p *Puller) WouldPull(ctx context.Context, ref reference.Named, target runtimeplatform.Target, scope policy.Scope, c resolve.Credential) (Verdict, policy.Rule, error) {
	d, _ := p.Treatment(ref.String(), policy.Pod{})
	if scope != "" {
		d.Scope = scope
	}
	v, err := p.decide(ctx, question{ref: ref, credential: c, decision: d, target: target, dry: true})
	return v, d.Rule, err
}

// Remake makes a key ready that has lost something: from what is on the node,
// and else from the registry with the node's own credentials. It tells what that
// took.
func (p *Puller) Remake(ctx context.Context, e imagepin.Entry) (done metrics.Done, _ error) {
	ref, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return "", err
	}
	rt, ok := p.Runtimes.ForTarget(e.Target)
	if !ok {
		return "", fmt.Errorf("no runtime handler has target %s: %w", e.Target, errdefs.ErrNotFound)
	}
	_, err = p.run(ctx, job{
		ref: ref, root: e.Root, runtime: rt, anew: true, done: func(d metrics.Done) { done = d },
	})
	return done, err
}
