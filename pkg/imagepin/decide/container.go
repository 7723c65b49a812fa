package decide

import (
	"cmp"
	"context"
	"errors"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Use is the use of an image by a container that is created without a pull.
type Use struct {
	// Name is what the caller names the image by.
	Name string
	// Image is the image on the node, by digest. It is nil if imagepin does not know the image.
	Image reference.Canonical
	// Ref is the reference by which the pod names the image; nil if it names none. InRepository reports that it is in the
	// repository of Image.
	Ref          reference.Named
	InRepository bool
	// Root is the descriptor of the image on the node.
	Root ocispec.Descriptor
	Pod  policy.Pod
}

// Used is what a container has to run.
type Used struct {
	// Ref is the reference of the use; nil if no pin can apply to it.
	Ref reference.Named
	// Root is the descriptor to run: that of the image on the node, unless a pin applies.
	Root ocispec.Descriptor
	// Pin is the pin that applies; nil if none does.
	Pin *pin.Pin
	// Scope is the scope of the pin that applies or that this use makes. It is empty if the policy does not pin Ref.
	Scope policy.Scope
	// New reports that the revision of the pod has no pin, and that the rule wants its tag to be resolved first. Unpinned is the same,
	// but also true while the Kubernetes API does not answer.
	New, Unpinned bool
	// Verified reports that the image verifiers have accepted Ref and Root. Without it, the use makes no pin.
	Verified bool
	// VerifyAs is the reference for which the image verifiers have to accept Root before the container is created; nil if the
	// rules do not ask for it.
	VerifyAs reference.Named

	pod  policy.Pod
	lock digest.Digest // the lock of the node that the image was checked against
}

// Use returns what a container has to run. It records what it has learned from the cluster. A pin of the cluster of which the node
// has no copy is resolved with the node's own credentials.
//
// It fails with [imagepin.NotInLock] (ErrPermissionDenied) if the rules allow only images of the node's lock, with
// [imagepin.ImageVerificationFailed] (ErrPermissionDenied) if they verify an image that imagepin does not know, with
// [imagepin.PinOfNewerRelease] (ErrNotImplemented), and as [Decider.Ask] and [Decider.Decide] do.
func (d *Decider) Use(ctx context.Context, u Use) (Used, error) {
	if u.Image == nil {
		return Used{}, cmp.Or(d.checkUnknownInLock(ctx, u.Name), d.checkUnknownVerified(u.Name))
	}
	used := Used{Root: u.Root, pod: u.Pod, lock: d.lock.Digest()}
	if u.Ref != nil {
		q, err := d.described(ctx, u.Ref, u.Pod)
		if err != nil {
			return used, err
		}
		// After a lock has moved the tag, the only entry of the image can be in a repository that it was copied to.
		if u.InRepository || q.Policy.Scope == policy.LockScope {
			used.Ref, used.Pin, used.Scope, used.New, used.Unpinned = u.Ref, q.Pin, q.Policy.Scope, q.New, q.Unpinned
		}
	}
	if used.Pin != nil {
		used.Root = used.Pin.Root
	}
	used.VerifyAs = d.verifyAs(u, used)
	ref := used.Ref
	if ref == nil {
		ref = u.Image
	}
	return used, d.checkInLock(ctx, ref, used.Root.Digest)
}

// described is request, with all of the descriptor that its pin has.
func (d *Decider) described(ctx context.Context, ref reference.Named, pod policy.Pod) (Request, error) {
	q, err := d.request(ctx, ref, pod)
	if err != nil || q.err != nil || q.Pin == nil || q.Pin.Described() {
		return q, cmp.Or(err, q.err)
	}
	v, err := d.decideClaimed(ctx, q, *q.Pin)
	q.Pin = &pin.Pin{ID: q.pinID(), Root: v.Root, MadeAt: q.Pin.MadeAt, By: pin.ByCluster}
	return q, err
}

// Confirm checks that what a container uses is still right when its images are ready, and makes the pins that these uses require: the
// first use of a reference wins. It reports whether every pin has the digest that was made ready, none was removed meanwhile, and
// the node's lock is the one that the images were checked against.
//
// It fails with [imagepin.RetainLimitReached] and [imagepin.PinLimitReached] (both ErrResourceExhausted), and as [Decider.Use] does.
func (d *Decider) Confirm(ctx context.Context, all ...Used) (current bool, _ error) {
	for _, used := range all {
		if used.lock != d.lock.Digest() {
			return false, nil
		}
		if used.Ref == nil {
			continue
		}
		held, err := d.pinUse(ctx, used)
		if err != nil {
			return false, err
		}
		if moved := held != nil && held.Root.Digest != used.Root.Digest; moved || held == nil && used.Pin != nil {
			return false, nil
		}
	}
	return true, nil
}

// pinUse pins the reference of a use. It returns the pin that decides for the pod. It returns nil if the policy does not pin the
// reference, or if it is not pinned and the use is not verified.
func (d *Decider) pinUse(ctx context.Context, used Used) (*pin.Pin, error) {
	q, err := d.request(ctx, used.Ref, used.pod)
	if err != nil || q.err != nil || q.Policy.Scope == "" {
		return nil, cmp.Or(err, q.err)
	}
	pinned := q.Pin != nil && q.Pin.Described()
	moved := q.Pin != nil && q.Pin.Root.Digest != used.Root.Digest
	switch {
	case pinned && (moved || q.Pin.By == pin.ByLock || q.Pin.By == pin.ByOperator): // no use makes a pin of the lock or of an operator
		return d.touch(ctx, q.Pin.ID)
	case moved:
		return q.Pin, nil
	case q.Pin == nil && !used.Verified:
		return nil, nil
	}
	if !pinned && q.Policy.Retain {
		// Reserve first: there must be no pin if there is no space.
		release, err := d.reserve(ctx, used.pod.Namespace, nil, nil, d.inRepository(used.Ref, used.Root.Digest)...)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	held, err := d.makePin(ctx, q.verdict(used.Root, ""), q.firstUse())
	var other *MovedError
	if errors.As(err, &other) {
		return &pin.Pin{ID: q.pinID(), Root: other.Verdict.Root, By: pin.ByCluster}, nil
	}
	if err != nil {
		return nil, err
	}
	return d.touch(ctx, held.ID)
}

// touch records the use of a pin. It returns the pin that decides afterwards: an operator may have moved or removed it, or applied a
// lock.
func (d *Decider) touch(ctx context.Context, id pin.ID) (*pin.Pin, error) {
	err := d.pins.Touch(ctx, id)
	if held, ok := d.now(id.Ref, id.Scope); ok {
		return &held, err
	}
	return nil, err
}
