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

// Preview returns the verdict of [Decider.Decide] for a call for the pod of q, and the rule that applies, with what the pod
// overrides. It asks the cluster nothing, and changes nothing. If scope is not empty, it replaces the scope of the rule.
func (d *Decider) Preview(ctx context.Context, q Request, scope policy.Scope) (Verdict, policy.Rule, error) {
	question := d.question(q.Ref.String(), q.Pod)
	answer := d.look(question)
	if scope != "" {
		answer = d.inScope(pin.ID{Scope: scope, Ref: q.Ref.String()})
	}
	q.Policy, q.Pin, q.err, q.DryRun = question.Policy, answer.Pin, answer.Err, true
	q.Policy.Scope, q.New = answer.Scope, isNew(question.Policy.Rule, answer)
	v, err := d.Decide(ctx, q)
	return v, q.Policy.Rule, err
}

// inScope returns the answer of one scope.
func (d *Decider) inScope(id pin.ID) pin.Answer {
	if held, ok := d.pins.Get(id); ok {
		return pin.Answer{Scope: id.Scope, Pin: &held}
	}
	return pin.Answer{Scope: id.Scope, Err: d.pins.CheckReadable(id)}
}

// SetPin is a pin that an operator sets.
type SetPin struct {
	Ref    reference.Named // normalized, with a tag
	Scope  policy.Scope
	Digest digest.Digest
	// Retain is whether the pin retains its content. If it is nil, the pin keeps its retention, and a new pin retains
	// nothing. A rule with retain = true takes precedence over false.
	Retain     *bool
	Credential resolve.Credential
	// Force allows the manifest of one platform although an index is known that lists it.
	Force bool

	read *pin.Pin // if not nil, the pin must still be as it was read
}

// retains reports whether the pin retains its content. before reports whether it has until now.
func (s SetPin) retains(before bool, rule policy.Rule) bool {
	switch {
	case rule.Retain:
		return true
	case s.Retain != nil:
		return *s.Retain
	}
	return before
}

// SetPin pins a tag to a digest. It asks the registry for the digest, unless the digest is on the node and the
// credential has a proof. previous is the digest that the tag was pinned to, or "".
//
// It fails as [resolve.Resolver.Resolve] does, with InvalidRequest (ErrInvalidArgument), also for the manifest of one
// platform, and with RetainLimitReached and PinLimitReached (both ErrResourceExhausted). The pin does not change if it
// fails.
func (d *Decider) SetPin(ctx context.Context, s SetPin) (held pin.Pin, previous digest.Digest, _ error) {
	if err := onlyTag(s.Ref); err != nil {
		return pin.Pin{}, "", err
	}
	if err := onlyOwn(s.Scope, "set", fmt.Sprintf(" %s %s", s.Ref, s.Digest)); err != nil {
		return pin.Pin{}, "", err
	}
	if err := d.onlyUnlocked(s.Ref, s.Scope); err != nil {
		return pin.Pin{}, "", err
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(s.Ref), s.Digest)
	if err != nil {
		return pin.Pin{}, "", imagepin.Invalid("digest", s.Digest.String(), err)
	}
	v, err := d.decideDigest(ctx, Request{Ref: byDigest, Credential: s.Credential}, s.Digest)
	if err != nil {
		return pin.Pin{}, "", err
	}
	if !s.Force {
		if err := d.onlyWhole(ctx, s, v.Root); err != nil {
			return pin.Pin{}, "", err
		}
	}
	id := pin.ID{Scope: s.Scope, Ref: s.Ref.String()}
	var moving []pin.Pin
	old, ok := d.pins.Get(id)
	if ok {
		previous, moving = old.Root.Digest, append(moving, old)
	}
	retain := s.retains(old.Retain, d.policy().Rule(s.Ref.String()))
	if retain {
		release, err := d.reserve(ctx, "", nil, d.freedBy(moving, s.Digest), d.inRepository(s.Ref, s.Digest)...)
		if err != nil {
			return pin.Pin{}, "", err
		}
		defer release()
	}
	if s.read == nil {
		held, err = d.pins.Move(ctx, id, v.Root, pin.ByOperator, retain)
	} else {
		held, err = d.pins.MoveUnchanged(ctx, *s.read, v.Root, pin.ByOperator, retain)
	}
	if err != nil || v.Proof == "" {
		return held, previous, err
	}
	return held, previous, d.pins.Prove(ctx, s.Ref, s.Digest, imagepin.NewProof(v.Proof, ""))
}

// Refresh is the current digest of a tag, and the pins and images to move to it.
type Refresh struct {
	// Verdict has the reference by digest, because the tag moves after the digest is ready, and the pins to move.
	Verdict Verdict
	Tag     reference.Named
	// Images are the current images of the tag, one for each target.
	Images []imagepin.Entry
}

// Refresh resolves a tag at the registry. scope selects the pins to move; empty means all of the node's own. Copies of the
// cluster's pins do not move: they would differ from those of other nodes.
//
// It fails as [resolve.Resolver.Resolve] does, with InvalidRequest (ErrInvalidArgument), and with UnknownPin and
// UnknownImage (both ErrNotFound) if there is nothing to move on the node.
func (d *Decider) Refresh(ctx context.Context, tag reference.Named, scope policy.Scope, c resolve.Credential) (Refresh, error) {
	if err := onlyTag(tag); err != nil {
		return Refresh{}, err
	}
	if err := onlyOwn(scope, "refresh", ""); err != nil {
		return Refresh{}, err
	}
	if err := d.onlyUnlocked(tag, scope); err != nil {
		return Refresh{}, err
	}
	r := Refresh{Tag: tag, Images: d.images.ByRef(tag.String())}
	var moves []pin.Pin
	for _, held := range d.pins.Scopes(tag.String()) {
		if scope == "" && held.By != pin.ByCluster || held.Scope == scope {
			moves = append(moves, held)
		}
	}
	if len(moves) == 0 && (scope != "" || len(r.Images) == 0) {
		return r, nothingToRefresh(tag, scope)
	}
	// A tag that was pushed before the call is not resolved to what it was before.
	found, err := d.registry.ResolveNow(ctx, tag, c, d.policy().Rule(tag.String()).ResolveAt == policy.ResolveAtOrigin)
	v, err := d.answer(Request{Ref: tag, Credential: c}, found, err, "resolved by the registry")
	if err != nil {
		return r, err
	}
	v.Moves = moves
	r.Verdict = v
	r.Verdict.Ref, err = reference.WithDigest(reference.TrimNamed(tag), v.Root.Digest)
	return r, err
}

// MovePins moves the pins of a refresh to its digest. images are the images of that digest, which are ready. It returns
// the new verdict for the tag. moved has the pins after the move. A pin that was removed or moved since [Decider.Refresh]
// has read it does not move.
//
// It fails with RetainLimitReached (ErrResourceExhausted) before any pin has moved, unless an operator sets retain on a
// later one during the moves. Content that the pins release counts as free space.
func (d *Decider) MovePins(ctx context.Context, r Refresh, images []imagepin.Entry) (v Verdict, moved []pin.Pin, _ error) {
	v = r.Verdict
	v.Ref, v.Moves = r.Tag, nil
	reserved := false
	for moves := r.Verdict.Moves; len(moves) > 0; {
		if still := d.reread(moves); !reserved && retains(still) {
			release, err := d.reserve(ctx, "", nil, d.freedBy(still, v.Root.Digest), images...)
			if err != nil {
				return v, moved, err
			}
			defer release()
			reserved = true
		}
		now, err := d.pins.Refresh(ctx, moves[0], v.Root, reserved)
		if errors.Is(err, pin.ErrNoRoom) {
			continue // an operator has set retain since the pins were read again
		}
		if err != nil {
			return v, moved, err
		}
		failpoint.Reach("refresh.pinned")
		if moved = append(moved, now); now.Root.Digest == v.Root.Digest {
			v.Pin = &now
		}
		moves = moves[1:]
	}
	d.lookedUp(r.Tag.String(), v.Root.Digest)
	return v, moved, nil
}

// reread returns pins as they are now, without those that were removed or moved since they were read. An operator may
// have set or removed retain during a pull.
func (d *Decider) reread(pins []pin.Pin) []pin.Pin {
	var still []pin.Pin
	for _, read := range pins {
		if now, ok := d.pins.Get(read.ID); ok && now.Root.Digest == read.Root.Digest {
			still = append(still, now)
		}
	}
	return still
}

// freedBy reports which digests no pin retains after some pins have moved to another digest.
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

// retains reports whether one of the pins retains its content.
func retains(pins []pin.Pin) bool {
	for _, held := range pins {
		if held.Retain {
			return true
		}
	}
	return false
}

var errDigest = errors.New("has a digest; only a tag can be pinned or refreshed")

func onlyTag(ref reference.Named) error {
	if _, ok := ref.(reference.Digested); ok {
		return imagepin.Invalid("reference", ref.String(), errDigest)
	}
	return nil
}

// onlyOwn fails for the scope of a pin of the cluster, which a command of kubectl imagepin changes. args are as in
// inClusterHint.
func onlyOwn(scope policy.Scope, command, args string) error {
	owner, ok := scope.Owner()
	if !ok {
		return nil
	}
	return &imagepin.Error{
		Reason: imagepin.InvalidRequest, Class: errdefs.ErrInvalidArgument,
		Message: fmt.Sprintf("scope %q: the Kubernetes API has the pins of this scope", scope),
		Hint:    inClusterHint(command, scope.Namespace(), owner, args),
	}
}

func nothingToRefresh(tag reference.Named, scope policy.Scope) error {
	if scope != "" {
		return &imagepin.Error{
			Reason: imagepin.UnknownPin, Ref: tag.String(), Class: errdefs.ErrNotFound,
			Message: fmt.Sprintf("it has no pin in scope %s", scope), Hint: "To list the pins of this node, run: imagepin pin ls",
		}
	}
	return &imagepin.Error{
		Reason: imagepin.UnknownImage, Ref: tag.String(), Class: errdefs.ErrNotFound,
		Message: "not on this node, and not pinned", Hint: "Pull it: imagepin pull " + tag.String(),
	}
}
