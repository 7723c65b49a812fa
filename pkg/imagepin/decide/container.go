package decide

import (
	"context"

	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// PinForPod returns the pin that decides what a reference resolves to for the containers of a pod, or nil if it is not
// pinned yet. scoped is false if the policy does not pin the reference for this pod. It fails with
// [imagepin.PinOfNewerRelease] (ErrNotImplemented).
func (d *Decider) PinForPod(ctx context.Context, ref reference.Named, pod policy.Pod) (held *pin.Pin, scoped bool, _ error) {
	q := Request{Ref: ref, Policy: d.PolicyFor(ctx, ref, pod)}
	held, err := d.pinOf(q)
	return held, q.Policy.Scope != "", err
}

// PinUse pins a reference to root for a container that is created without a pull. root must be ready for the container.
// It returns the pin that decides for the pod: the first use wins. It returns nil if the policy does not pin the
// reference. It fails with [imagepin.RetainLimitReached] and [imagepin.PinLimitReached] (both ErrResourceExhausted).
func (d *Decider) PinUse(ctx context.Context, ref reference.Named, pod policy.Pod, root ocispec.Descriptor) (*pin.Pin, error) {
	q := Request{Ref: ref, Policy: d.PolicyFor(ctx, ref, pod)}
	if q.Policy.Scope == "" {
		return nil, nil
	}
	if _, ok := d.pins.Get(q.pinID()); !ok && q.Policy.Retain {
		// Reserve first: there must be no pin if there is no space.
		release, err := d.retained.Reserve(nil, d.inRepository(ref, root.Digest)...)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	use := q.firstUse()
	held, err := d.pins.MakeForNamespace(ctx, use.Namespace, use.ID, root, pin.ByUse, use.Retain)
	if err != nil {
		return nil, err
	}
	return &held, d.pins.Touch(ctx, held.ID)
}
