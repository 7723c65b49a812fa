package cluster

import (
	"context"

	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// mayHaveOwner reports whether the API server can know the owner of a pod.
func mayHaveOwner(pod policy.Pod) bool {
	return pod.Namespace != "" && pod.Name != "" && pod.UID != "" && !pod.Static()
}

// LearnOwner asks the API server for the owner of a pod whose images may be pinned in the cluster, so that later calls for
// the pod do not have to. Those report if it fails. It ends with ctx.
func (a *Authority) LearnOwner(ctx context.Context, pod policy.Pod) {
	if mayHaveOwner(pod) && a.policy().PinsWorkloads() {
		if _, err := a.claims.Owner(ctx, pod); err != nil {
			log.G(ctx).WithError(err).Debug("cannot read the owner of a pod yet")
		}
	}
}

// WithKnownOwner returns the pod with its owner as far as the node knows it, without a request: from an earlier call for
// the pod, or from the node's pins.
func (a *Authority) WithKnownOwner(pod policy.Pod) policy.Pod {
	if pod.Owner != nil || pod.UID == "" {
		return pod
	}
	known, ok := a.claims.KnownOwner(pod)
	if pod.Owner = known; !ok {
		pod.Owner = a.likelyOwner(pod)
	}
	return pod
}

// likelyOwner returns the owner of the node's pins that is most likely the owner of a pod. It is used if the API server
// does not answer.
func (a *Authority) likelyOwner(pod policy.Pod) *policy.Owner {
	var found *pin.Pin
	for _, held := range a.pins.List() {
		owner, ok := held.Scope.Owner()
		if !ok || held.Scope.Namespace() != pod.Namespace || !owner.MayOwn(pod) {
			continue
		}
		if found == nil || likelier(owner, held, *found) {
			found = &held
		}
	}
	if found == nil {
		return nil
	}
	owner, _ := found.Scope.Owner()
	return &owner
}

// likelier reports whether owner, which has the pin held, is more likely the owner of a pod than that of another pin. Of two
// names, the longer one has more in common with the pod's. An owner that was deleted and created again has the same name:
// the later one was used last.
func likelier(owner policy.Owner, held, than pin.Pin) bool {
	other, _ := than.Scope.Owner()
	if len(owner.Name) != len(other.Name) {
		return len(owner.Name) > len(other.Name)
	}
	return held.UsedAt.After(than.UsedAt)
}
