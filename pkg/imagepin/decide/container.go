package decide

import (
	"context"
	"errors"

	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// PinForPod returns the pin that decides what a reference resolves to for the containers of a pod, or nil if it is not
// pinned yet. scope is where the policy pins the reference for this pod, and "" if it does not. It fails with
// [imagepin.PinOfNewerRelease] (ErrNotImplemented), and as [Decider.InCluster] does. A pin of the cluster of which the node
// has no copy is resolved with the node's own credentials.
func (d *Decider) PinForPod(ctx context.Context, ref reference.Named, pod policy.Pod) (held *pin.Pin, scope policy.Scope, _ error) {
	pod, err := d.InCluster(ctx, ref, pod)
	if err != nil {
		return nil, "", err
	}
	q := Request{Ref: ref, Policy: d.PolicyFor(ctx, ref, pod), Pod: pod}
	if held, err = d.pinOf(q); err != nil {
		return nil, "", err
	}
	if known, ok := d.claimed(q, held); ok {
		v, err := d.decideClaimed(ctx, q, known)
		if err != nil {
			return nil, "", err
		}
		held = &pin.Pin{ID: q.pinID(), Root: v.Root, MadeAt: known.At, By: pin.ByCluster}
	}
	return held, q.Policy.Scope, nil
}

// Use is the use of an image by a container that is created without a pull. The image is ready for the container.
type Use struct {
	Ref  reference.Named
	Pod  policy.Pod
	Root ocispec.Descriptor
	// Verified reports that the image verifiers have accepted Ref and Root. Without it, the use makes no new pin.
	Verified bool
}

// PinUse pins the reference of a use. It returns the pin that decides for the pod: the first use wins. It returns nil if
// the policy does not pin the reference, or if it is not pinned and the use is not verified. It fails with
// [imagepin.RetainLimitReached] and [imagepin.PinLimitReached] (both ErrResourceExhausted), and as [Decider.InCluster]
// does.
func (d *Decider) PinUse(ctx context.Context, u Use) (*pin.Pin, error) {
	pod, err := d.InCluster(ctx, u.Ref, u.Pod)
	if err != nil {
		return nil, err
	}
	q := Request{Ref: u.Ref, Policy: d.PolicyFor(ctx, u.Ref, pod), Pod: pod}
	if q.Policy.Scope == "" {
		return nil, nil
	}
	if q.Policy.Scope == policy.LockScope {
		return d.useLocked(ctx, q)
	}
	known, claimed := d.claimed(q, nil)
	if claimed && known.Digest != u.Root.Digest {
		return &pin.Pin{ID: q.pinID(), Root: ocispec.Descriptor{Digest: known.Digest}, By: pin.ByCluster}, nil
	}
	_, pinned := d.pins.Get(q.pinID())
	if !pinned && !claimed && !u.Verified {
		return nil, nil
	}
	if !pinned && q.Policy.Retain {
		// Reserve first: there must be no pin if there is no space.
		release, err := d.reserve(ctx, u.Pod.Namespace, nil, nil, d.inRepository(u.Ref, u.Root.Digest)...)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	held, err := d.makePin(ctx, q.verdict(u.Root, ""), q.firstUse())
	var moved *MovedError
	if errors.As(err, &moved) {
		return &pin.Pin{ID: q.pinID(), Root: moved.Verdict.Root, By: pin.ByCluster}, nil
	}
	if err != nil {
		return nil, err
	}
	if now, locked := d.pins.OfLock(u.Ref.String()); locked {
		return &now, nil // a lock was applied meanwhile
	}
	return &held, d.pins.Touch(ctx, held.ID)
}
