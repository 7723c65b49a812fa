package decide

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Preview returns what [Decider.Decide] would for a call of no pod, and the rule that it follows. It changes nothing.
// A scope other than the empty one is that of the pods it is for.
func (d *Decider) Preview(ctx context.Context, q Question, scope policy.Scope) (Verdict, policy.Rule, error) {
	q.Policy, _ = d.EffectivePolicy(q.Ref.String(), policy.Pod{})
	if scope != "" {
		q.Policy.Scope = scope
	}
	q.DryRun = true
	v, err := d.Decide(ctx, q)
	return v, q.Policy.Rule, err
}

// SetPin is a pin that an operator sets.
type SetPin struct {
	Ref        reference.Named // normalized, with a tag
	Scope      policy.Scope
	Digest     digest.Digest
	Retain     bool
	Credential resolve.Credential
}

// SetPin pins a tag to a digest. The registry is asked for the digest, unless it is on the node and the credential has a
// proof. previous is the digest that the tag was pinned to; empty where it was not.
//
// It fails as [resolve.Resolver.Resolve] does, with InvalidRequest (ErrInvalidArgument), and with RetainLimitReached and
// PinLimitReached (both ErrResourceExhausted): then the pin is as it was.
func (d *Decider) SetPin(ctx context.Context, s SetPin) (held pin.Pin, previous digest.Digest, _ error) {
	if err := onlyTag(s.Ref); err != nil {
		return pin.Pin{}, "", err
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(s.Ref), s.Digest)
	if err != nil {
		return pin.Pin{}, "", imagepin.Invalid("digest", s.Digest.String(), err)
	}
	v, err := d.decideDigest(ctx, Question{Ref: byDigest, Credential: s.Credential}, s.Digest)
	if err != nil {
		return pin.Pin{}, "", err
	}
	id := pin.ID{Scope: s.Scope, Ref: s.Ref.String()}
	var moving []pin.Pin
	if old, ok := d.pins.Get(id); ok {
		previous, moving = old.Root.Digest, append(moving, old)
	}
	retain := s.Retain || d.policy().Rule(s.Ref.String()).Retain
	if retain {
		release, err := d.retained.Reserve(d.freedBy(moving, s.Digest), d.inRepository(s.Ref, s.Digest)...)
		if err != nil {
			return pin.Pin{}, "", err
		}
		defer release()
	}
	if held, err = d.pins.Move(ctx, id, v.Root, pin.ByOperator, retain); err != nil || v.Proof == "" {
		return held, previous, err
	}
	return held, previous, d.pins.Prove(ctx, s.Ref, s.Digest, v.Proof)
}

// Refresh is the current digest of a tag, and what is to move to it.
type Refresh struct {
	// Verdict is of the digest's own reference: the tag moves once it is ready.
	Verdict Verdict
	Tag     reference.Named
	Pins    []pin.Pin
	// Images are what the tag means now for each target.
	Images []imagepin.Entry
}

// Refresh asks the registry for the current digest of a tag. scope is that of the pins to move; empty is all.
//
// It fails as [resolve.Resolver.Resolve] does, with InvalidRequest (ErrInvalidArgument), and with UnknownPin and
// UnknownImage (both ErrNotFound) where the node has nothing to move.
func (d *Decider) Refresh(ctx context.Context, tag reference.Named, scope policy.Scope, c resolve.Credential) (Refresh, error) {
	if err := onlyTag(tag); err != nil {
		return Refresh{}, err
	}
	r := Refresh{Tag: tag, Images: d.images.ByRef(tag.String())}
	for _, held := range d.pins.Scopes(tag.String()) {
		if scope == "" || held.Scope == scope {
			r.Pins = append(r.Pins, held)
		}
	}
	if len(r.Pins) == 0 && (scope != "" || len(r.Images) == 0) {
		return r, nothingToRefresh(tag, scope)
	}
	v, err := d.ask(ctx, Question{Ref: tag, Credential: c}, tag, "the registry says so")
	if err != nil {
		return r, err
	}
	r.Verdict = v
	r.Verdict.Ref, err = reference.WithDigest(reference.TrimNamed(tag), v.Root.Digest)
	return r, err
}

// MovePins moves the pins of a refresh to its digest, of which images are ready, and returns the verdict of the tag
// from then on. moved has the pins as they are now.
//
// It fails with RetainLimitReached (ErrResourceExhausted) before any pin has moved. What the pins let go of counts as
// room.
func (d *Decider) MovePins(ctx context.Context, r Refresh, images []imagepin.Entry) (v Verdict, moved []pin.Pin, _ error) {
	v = r.Verdict
	v.Ref = r.Tag
	if retains(r.Pins) {
		release, err := d.retained.Reserve(d.freedBy(r.Pins, v.Root.Digest), images...)
		if err != nil {
			return v, nil, err
		}
		defer release()
	}
	for _, held := range r.Pins {
		by := pin.ByRefresh
		if held.By == pin.ByOperator {
			by = held.By // it still holds whatever the rules say
		}
		now, err := d.pins.Move(ctx, held.ID, v.Root, by, held.Retain)
		if err != nil {
			return v, moved, err
		}
		failpoint.Reach("refresh.pinned")
		v.Pin, moved = &now, append(moved, now)
	}
	return v, moved, nil
}

// freedBy reports which digests no pin retains once some pins have moved to another.
func (d *Decider) freedBy(moving []pin.Pin, to digest.Digest) func(root digest.Digest) bool {
	freed := make(map[digest.Digest]bool)
	for _, held := range moving {
		freed[held.Root.Digest] = held.Root.Digest != to
	}
	for _, held := range d.pins.List() {
		if held.Retain && !has(moving, held.ID) {
			delete(freed, held.Root.Digest)
		}
	}
	return func(root digest.Digest) bool { return freed[root] }
}

func has(pins []pin.Pin, id pin.ID) bool {
	for _, held := range pins {
		if held.ID == id {
			return true
		}
	}
	return false
}

// retains reports whether one of some pins retains its content.
func retains(pins []pin.Pin) bool {
	for _, held := range pins {
		if held.Retain {
			return true
		}
	}
	return false
}

var errDigest = errors.New("has a digest, and always means that: only a tag can be pinned or refreshed")

func onlyTag(ref reference.Named) error {
	if _, ok := ref.(reference.Digested); ok {
		return imagepin.Invalid("reference", ref.String(), errDigest)
	}
	return nil
}

func nothingToRefresh(tag reference.Named, scope policy.Scope) error {
	if scope != "" {
		return &imagepin.Error{
			Reason: imagepin.UnknownPin, Ref: tag.String(), Class: errdefs.ErrNotFound,
			Message: fmt.Sprintf("it has no pin in scope %s", scope), Hint: "imagepin pin ls lists the pins of this node.",
		}
	}
	return &imagepin.Error{
		Reason: imagepin.UnknownImage, Ref: tag.String(), Class: errdefs.ErrNotFound,
		Message: "it was never pulled on this node, and has no pin", Hint: "Pull it: imagepin pull " + tag.String(),
	}
}
