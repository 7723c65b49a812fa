package decide

import (
	"context"

	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// PinForPod returns the pin that decides what a reference means for the containers of a pod; nil where there is none
// yet. scoped is false where the policy makes none. It fails with [imagepin.PinOfNewerRelease] (ErrNotImplemented).
func (d *Decider) PinForPod(ctx context.Context, ref reference.Named, pod policy.Pod) (held *pin.Pin, scoped bool, _ error) {
	q := Question{Ref: ref, Policy: d.PolicyFor(ctx, ref, pod)}
	held, err := d.pinOf(q)
	return held, q.Policy.Scope != "", err
}

// PinUse makes the pin of a reference for a container that is created without a pull, of root, which is ready for it.
// It returns the pin that decides for the container's pod, which is that of the first use; nil where the policy makes
// none. It fails with [imagepin.RetainLimitReached] and [imagepin.PinLimitReached] (both ErrResourceExhausted).
func (d *Decider) PinUse(ctx context.Context, ref reference.Named, pod policy.Pod, root ocispec.Descriptor) (*pin.Pin, error) {
	q := Question{Ref: ref, Policy: d.PolicyFor(ctx, ref, pod)}
	if q.Policy.Scope == "" {
		return nil, nil
	}
	if _, ok := d.pins.Get(q.pinID()); !ok && q.Policy.Retain {
		// First, so that there is no pin where there is no room.
		release, err := d.retained.Reserve(nil, d.inRepository(ref, root.Digest)...)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	use := q.firstUse()
	held, err := d.pins.MakeFor(ctx, use.Namespace, use.ID, root, pin.ByUse, use.Retain)
	if err != nil {
		return nil, err
	}
	return &held, d.pins.Touch(ctx, held.ID)
}
