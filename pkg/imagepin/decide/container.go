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
// pinned yet. scoped is false if the policy does not pin the reference for this pod. It fails with
// [imagepin.PinOfNewerRelease] (ErrNotImplemented), and as [Decider.InCluster] does. A pin of the cluster of which the node
// has no copy is resolved with the node's own credentials.
func (d *Decider) PinForPod(ctx context.Context, ref reference.Named, pod policy.Pod) (held *pin.Pin, scoped bool, _ error) {
	pod, err := d.InCluster(ctx, ref, pod)
	if err != nil {
		return nil, false, err
	}
	q := Request{Ref: ref, Policy: d.PolicyFor(ctx, ref, pod), Pod: pod}
	if held, err = d.pinOf(q); err != nil {
		return nil, false, err
	}
	if known, ok := d.claimed(q, held); ok {
		v, err := d.decideClaimed(ctx, q, known)
		if err != nil {
			return nil, false, err
		}
		held = &pin.Pin{ID: q.pinID(), Root: v.Root, MadeAt: known.At, By: pin.ByCluster}
	}
	return held, q.Policy.Scope != "", nil
}

// PinUse pins a reference to root for a container that is created without a pull. root must be ready for the container.
// It returns the pin that decides for the pod: the first use wins. It returns nil if the policy does not pin the
// reference. It fails with [imagepin.RetainLimitReached] and [imagepin.PinLimitReached] (both ErrResourceExhausted), and as
// [Decider.InCluster] does.
func (d *Decider) PinUse(ctx context.Context, ref reference.Named, pod policy.Pod, root ocispec.Descriptor) (*pin.Pin, error) {
	pod, err := d.InCluster(ctx, ref, pod)
	if err != nil {
		return nil, err
	}
	q := Request{Ref: ref, Policy: d.PolicyFor(ctx, ref, pod), Pod: pod}
	if q.Policy.Scope == "" {
		return nil, nil
	}
	if known, other := d.claimed(q, nil); other && known.Digest != root.Digest {
		return &pin.Pin{ID: q.pinID(), Root: ocispec.Descriptor{Digest: known.Digest}, By: pin.ByCluster}, nil
	}
	if _, ok := d.pins.Get(q.pinID()); !ok && q.Policy.Retain {
		// Reserve first: there must be no pin if there is no space.
		release, err := d.retained.Reserve(nil, d.inRepository(ref, root.Digest)...)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	held, err := d.makePin(ctx, q.verdict(root, ""), q.firstUse())
	var moved *MovedError
	if errors.As(err, &moved) {
		return &pin.Pin{ID: q.pinID(), Root: moved.Verdict.Root, By: pin.ByCluster}, nil
	}
	if err != nil {
		return nil, err
	}
	return &held, d.pins.Touch(ctx, held.ID)
}
