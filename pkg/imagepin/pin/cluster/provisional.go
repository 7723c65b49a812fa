package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// The states of the node's pin for an image of a revision. "Record" is a pull or a container ([Authority.Ask], [Authority.Claim]) or,
// in the background, [Authority.Settle].
//
//	no pin ── first use, the API server does not answer ──▶ provisional
//	  │  ▲                                                   │      │
//	  │  └─ the ImagePin was deleted ─┐                      │      │ record: another node was first
//	  │                               │                      │      │ with another digest
//	  └─ first use: claim, record ──▶ copy ◀─ record: same ──┘      │
//	                                   ▲        digest              │
//	                                   └──── reported as lost ──────┘
//
// A provisional pin has the scope of the owner. If the owner is not known, it has the scope of the pod's labels, and is removed when
// the owner has a copy. A status answers in each state and changes none.

// madeWithoutOwner returns the provisional pin that was made for pods with the labels of pod while their owner was not known.
func (a *Authority) madeWithoutOwner(ref string, pod policy.Pod) (_ pin.Pin, ok bool) {
	held, ok := a.pins.Get(pin.ID{Scope: a.policy().LabelScope(pod), Ref: ref})
	return held, ok && held.Provisional != nil
}

// madeForOwner returns the provisional pin that was made for the owner of pod while the owner was not known, or nil. An owner that
// was deleted and created again has the same labels. So the pod for which the pin was made must have the owner. If that pod
// is gone, nobody knows its owner: madeForOwner returns no pin, so that the tag is resolved again.
func (a *Authority) madeForOwner(ctx context.Context, ref string, pod policy.Pod) (*pin.Pin, error) {
	ownerless, ok := a.madeWithoutOwner(ref, pod)
	if !ok {
		return nil, nil
	}
	same, err := a.ownerRan(ctx, ownerless, pod)
	if isGone(err) {
		return nil, nil
	}
	if err != nil || !same {
		return nil, err
	}
	// The pin can have been claimed, moved or removed during the request.
	if now, ok := a.madeWithoutOwner(ref, pod); ok && *now.Provisional == *ownerless.Provisional {
		return &now, nil
	}
	return nil, nil
}

// ownerRan reports whether the pod for which a provisional pin was made has the owner of pod. If that pod is gone, it fails
// with an error for which isGone is true.
func (a *Authority) ownerRan(ctx context.Context, provisional pin.Pin, pod policy.Pod) (bool, error) {
	owner, err := a.claims.Owner(ctx, claimantOf(provisional))
	switch {
	case err != nil:
		return false, err
	case owner == nil:
		return false, errdefs.ErrNotFound
	}
	return *owner == *pod.Owner, nil
}

// isGone reports whether a request for a pod failed because the pod is gone. The Node authorizer refuses to return such a pod.
func isGone(err error) bool { return errdefs.IsPermissionDenied(err) || errdefs.IsNotFound(err) }

// claimantOf returns the pod for which a provisional pin was made.
func claimantOf(provisional pin.Pin) policy.Pod {
	return policy.Pod{
		Namespace: provisional.Scope.Namespace(), Name: provisional.Provisional.Name, UID: provisional.Provisional.UID, MayBeGone: true,
	}
}

// giveWay removes a provisional pin after the node has a copy of the cluster's pin, which has the digest claimed. pod is a
// pod of its owner.
func (a *Authority) giveWay(ctx context.Context, pod policy.Pod, provisional pin.Pin, claimed digest.Digest) error {
	removed, err := a.pins.Unfollow(ctx, provisional)
	if removed && provisional.Root.Digest != claimed {
		a.reportLost(ctx, pod, provisional, claimed)
	}
	return err
}

// reportLost reports that a provisional pin has given way to the cluster's pin for the owner of pod, which has the digest
// claimed. Call it only after the pin was moved or removed, so that of concurrent calls only one reports it.
func (a *Authority) reportLost(ctx context.Context, pod policy.Pod, lost pin.Pin, claimed digest.Digest) {
	scope := policy.OwnerScope(pod.Namespace, *pod.Owner)
	log.G(ctx).WithFields(log.Fields{"ref": lost.Ref, "scope": string(scope), "digest": claimed, "previous": lost.Root.Digest}).
		Warn("another node has pinned the image meanwhile, containers of this revision on this node run another digest until they are created again")
	now, _ := a.claims.Known(pod, lost.Ref)
	now.Digest = claimed
	pod.Name, pod.UID = lost.Provisional.Name, lost.Provisional.UID
	a.claims.Lost(pod, lost.Ref, lost.Root.Digest, now)
}

// WaitError means that a provisional pin cannot be claimed before another pod of its revision starts, or before a person
// changes something: the API server refuses the claim, for example because the pod is gone, the registry requires the
// credential of a pod for the digest of the cluster, or the ImagePin is foreign.
type WaitError struct{ Err error }

func (e *WaitError) Error() string { return "the pin waits: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *WaitError) Unwrap() error { return e.Err }

// Settle claims a provisional pin for the pod that it was made for. If the cluster has another digest meanwhile, the pin
// moves to it. The error is a [*WaitError] if it is of no use to try again soon.
func (a *Authority) Settle(ctx context.Context, provisional pin.Pin) error {
	if provisional.Provisional == nil {
		return nil
	}
	pod := claimantOf(provisional)
	owner, err := a.claims.Owner(ctx, pod)
	if err == nil && owner == nil {
		err = fmt.Errorf("pod %s/%s has no owner: %w", pod.Namespace, pod.Name, errdefs.ErrNotFound)
	}
	if err == nil {
		pod.Owner = owner
		_, err = a.settle(ctx, provisional, pod)
	}
	if errdefs.IsPermissionDenied(err) || errdefs.IsUnauthorized(err) || errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return &WaitError{err}
	}
	return err
}

// settle claims a provisional pin for a pod whose owner is known. It returns the pin of the owner.
func (a *Authority) settle(ctx context.Context, provisional pin.Pin, pod policy.Pod) (pin.Pin, error) {
	id := idOf(pod, provisional.Ref)
	claimed, err := withFailpoints(a.claims.ClaimProvisional)(ctx, pod, provisional.Ref, provisional.Root.Digest)
	if err != nil {
		return pin.Pin{}, err
	}
	root := provisional.Root
	if claimed != root.Digest {
		if root, err = a.describe(ctx, provisional.Ref, claimed); err != nil {
			return pin.Pin{}, &undescribedError{err}
		}
	}
	held, err := a.keepCopy(ctx, pod, id, root, provisional.Retain)
	if err != nil || id == provisional.ID {
		return held, err
	}
	return held, a.giveWay(ctx, pod, provisional, claimed)
}

// undescribedError means that a digest of the cluster is not on the node, and that the registry did not return its
// descriptor with the node's credentials.
type undescribedError struct{ error }

// Unwrap returns the error of the registry.
func (e *undescribedError) Unwrap() error { return e.error }

func isUndescribed(err error) bool {
	var u *undescribedError
	return errors.As(err, &u)
}

// describe returns the descriptor of a digest, from the node or from the registry with the node's credentials.
func (a *Authority) describe(ctx context.Context, name string, root digest.Digest) (ocispec.Descriptor, error) {
	ref, err := reference.ParseNamed(name)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return a.node.DescribeAtRegistry(ctx, ref, root)
}

// pinProvisionally pins an image on the node until the cluster has a pin. err is why it has none, if it was asked now.
func (a *Authority) pinProvisionally(ctx context.Context, root ocispec.Descriptor, use pin.FirstUse, err error) (pin.Pin, error) {
	entry := log.G(ctx).WithFields(log.Fields{"ref": use.ID.Ref, "scope": string(use.ID.Scope), "digest": root.Digest})
	if err != nil {
		entry = entry.WithError(err)
	}
	entry.Warn("the Kubernetes API has no usable answer, the image is pinned on this node until it has")
	return a.pins.MakeProvisional(ctx, use.ID, root, use.Retain, pin.Claimant{Name: use.Pod.Name, UID: use.Pod.UID})
}
