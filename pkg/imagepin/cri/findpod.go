package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/order"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// FindPod returns a pod of the node by its name, with its owner as far as the node knows it, and its runtime handler. Of several
// sandboxes with this name, it uses the latest one that is ready. It fails with [imagepin.UnknownPod] (ErrNotFound).
func (s *Service) FindPod(ctx context.Context, namespace, name string) (_ policy.Pod, handler string, _ error) {
	return s.containers.findPod(ctx, namespace, name)
}

func (s *containers) findPod(ctx context.Context, namespace, name string) (_ policy.Pod, handler string, _ error) {
	resp, err := s.runtimes.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return policy.Pod{}, "", fmt.Errorf("find pod %s/%s: %w", namespace, name, err)
	}
	found := slices.DeleteFunc(resp.GetItems(), func(sb *runtime.PodSandbox) bool {
		return sb.GetMetadata().GetNamespace() != namespace || sb.GetMetadata().GetName() != name
	})
	if len(found) == 0 {
		return policy.Pod{}, "", &imagepin.Error{
			Reason: imagepin.UnknownPod, Class: errdefs.ErrNotFound, Message: fmt.Sprintf("this node has no pod %q", namespace+"/"+name),
			Hint: "Run the command on the pod's node: kubectl get pod -o wide",
		}
	}
	ready := func(sb *runtime.PodSandbox) bool { return sb.GetState() == runtime.PodSandboxState_SANDBOX_READY }
	latest := slices.MaxFunc(found, func(a, b *runtime.PodSandbox) int {
		return cmp.Or(order.Bool(ready(a), ready(b)), cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()))
	})
	return s.Decider.WithKnownOwner(newPod(latest)), latest.GetRuntimeHandler(), nil
}
