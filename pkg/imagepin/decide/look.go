package decide

import (
	"context"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Look returns the digest that a normalized reference is pinned to for a pod, in the reference's repository. ok is false if it is
// not pinned. The node may not have the digest. Look writes nothing: what it learns from the cluster is recorded by the next pull or
// container. It fails as [Decider.Ask] does if the cluster has no usable answer.
func (d *Decider) Look(ctx context.Context, name string, pod policy.Pod) (_ reference.Canonical, ok bool, _ error) {
	if !d.PerPod(name) {
		return nil, false, nil
	}
	answer, err := d.ask(ctx, d.question(name, pod))
	if err != nil || answer.Pin == nil {
		return nil, false, err
	}
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return nil, false, nil
	}
	root, err := reference.WithDigest(reference.TrimNamed(ref), answer.Pin.Root.Digest)
	return root, err == nil, nil
}

// PerPod reports whether the digest of a normalized reference can depend on the pod of a call.
func (d *Decider) PerPod(name string) bool {
	_, none := d.cluster().(noCluster)
	return !none || d.pins.Pinned(name)
}
