package decide

import (
	"context"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Look returns the digest that a normalized reference is pinned to for a pod, in the reference's repository. ok is false if it is
// not pinned. The node may not have the digest. Look writes nothing: what it learns from the cluster is recorded by the next pull or
// container. It fails as [Decider.Ask] does if the cluster has no usable answer.
func (d *Decider) Look(ctx context.Context, name string, pod policy.Pod) (_ reference.Canonical, ok bool, _ error) {
	shares := d.shares(name, pod)
	if !shares && !d.pins.Pinned(name) {
		return nil, false, nil // parsing is a large part of a call
	}
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return nil, false, nil
	}
	shared := pin.Shared{Pod: pod}
	if shares {
		if shared, err = d.cluster().Ask(ctx, ref, pod); err != nil {
			return nil, false, err
		}
	}
	held, ok := d.pinFor(ref, shared)
	if !ok {
		return nil, false, nil
	}
	root, err := reference.WithDigest(reference.TrimNamed(ref), held.Root.Digest)
	return root, err == nil, nil
}

// pinFor returns the pin for a reference and a pod, with what the cluster has.
func (d *Decider) pinFor(ref reference.Named, shared pin.Shared) (pin.Pin, bool) {
	if held, locked := d.Locked(ref.String()); locked {
		return held, true // also if the lock was applied while the cluster was asked
	}
	if shared.Provisional != nil {
		return *shared.Provisional, true
	}
	effective, _ := d.effectivePolicy(ref.String(), shared.Pod, shared.Dropped)
	q := Request{Ref: ref, Policy: effective, Pod: shared.Pod}
	held, ok := d.pins.Get(q.pinID())
	ok = ok && (!shared.Dropped || held.By != pin.ByCluster)
	if known, other := d.claimed(q, heldOrNil(held, ok)); other {
		return known, true
	}
	return held, ok
}

// PerPod reports whether the digest of a normalized reference can depend on the pod of a call.
func (d *Decider) PerPod(name string) bool {
	_, none := d.cluster().(noCluster)
	return !none || d.pins.Pinned(name)
}

// LearnOwner asks for the owner of a pod whose images may be pinned in the cluster, so that later calls for the pod do not have to.
func (d *Decider) LearnOwner(ctx context.Context, pod policy.Pod) { d.cluster().LearnOwner(ctx, pod) }

// WithKnownOwner returns the pod with its owner as far as the node knows it, without a request.
func (d *Decider) WithKnownOwner(pod policy.Pod) policy.Pod { return d.cluster().WithKnownOwner(pod) }

func heldOrNil(held pin.Pin, ok bool) *pin.Pin {
	if !ok {
		return nil
	}
	return &held
}
