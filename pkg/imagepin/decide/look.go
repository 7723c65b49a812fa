package decide

import (
	"context"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Looked is what a status call learns of a reference for a pod.
type Looked struct {
	// Root is the digest that the reference is pinned to, in its repository. It is nil if it is not pinned. The node may not have it.
	Root reference.Canonical
	// New reports that the revision of the pod has no pin, and that the rule wants its tag to be resolved first. Unpinned is the same,
	// but also true while the Kubernetes API does not answer.
	New, Unpinned bool
}

// Look returns the digest that a normalized reference is pinned to for a pod. It writes nothing: what it learns from the cluster is
// recorded by the next pull or container. It fails as [Decider.Ask] does if the cluster has no usable answer.
func (d *Decider) Look(ctx context.Context, name string, pod policy.Pod) (Looked, error) {
	if !d.PerPod(name) {
		return Looked{}, nil
	}
	q := d.question(name, pod)
	answer, err := d.ask(ctx, q)
	if err != nil || answer.Pin == nil {
		return Looked{New: err == nil && isNew(q.Policy.Rule, answer), Unpinned: err == nil && isUnpinned(q.Policy.Rule, answer)}, err
	}
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return Looked{}, nil
	}
	root, err := reference.WithDigest(reference.TrimNamed(ref), answer.Pin.Root.Digest)
	return Looked{Root: root}, err
}

// PinOf returns the pin that applies to a normalized reference for a pod, or nil. Like Look, it writes nothing. It fails as
// [Decider.Ask] does if the cluster has no usable answer, and with [imagepin.PinOfNewerRelease] (ErrNotImplemented).
func (d *Decider) PinOf(ctx context.Context, name string, pod policy.Pod) (*pin.Pin, error) {
	answer, err := d.ask(ctx, d.question(name, pod))
	if err != nil {
		return nil, err
	}
	return answer.Pin, answer.Err
}

// PerPod reports whether the digest of a normalized reference can depend on the pod of a call.
func (d *Decider) PerPod(name string) bool {
	_, none := d.cluster().(noCluster)
	return !none || d.pins.Pinned(name) || d.policy().Rule(name).NewRevision == policy.FromRegistry
}
