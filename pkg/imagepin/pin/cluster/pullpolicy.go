package cluster

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// policyNever is the pull policy of a container whose image kubelet does not pull (PullNever in k8s.io/api/core/v1).
const policyNever = "Never"

// NeverPulls reports whether kubelet may find a normalized reference on the node only, because a container or an image volume of the
// pod has the pull policy Never for it. Neither of the calls of the CRI says so, so it asks the API server. Without an answer, it fails
// if the cluster is strict. Otherwise never is true, because a pod must not wait for a pull that kubelet does not make, and known is
// false.
func (a *Authority) NeverPulls(ctx context.Context, ref string, pod policy.Pod) (never, known bool, _ error) {
	if !mayHaveOwner(pod) {
		return false, true, nil
	}
	policies, err := a.claims.PullPolicies(ctx, pod, ref)
	switch {
	case err == nil:
		return slices.Contains(policies, policyNever), true, nil
	case errdefs.IsNotFound(err):
		return false, true, nil // not a pod of the API server, see Claims.Owner
	case a.strict:
		return false, false, err
	}
	log.G(ctx).WithError(err).WithField("ref", ref).WithField("pod", pod.Namespace+"/"+pod.Name).
		Warn("cannot read the pull policies of a pod, its new revision can use the image on the node")
	return true, false, nil
}

// PullPolicies returns the pull policies of the containers and image volumes of a pod that use an image. Errors are those of
// [API.ImagesOf].
func (c *Claims) PullPolicies(ctx context.Context, pod policy.Pod, image string) ([]string, error) {
	images, err := c.config.API.ImagesOf(ctx, kube.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)})
	if err != nil {
		return nil, err
	}
	var policies []string
	for _, i := range images {
		if ref, err := imagepin.ParseReference(i.Name); err == nil && ref.String() == image {
			policies = append(policies, i.PullPolicy)
		}
	}
	return policies, nil
}
