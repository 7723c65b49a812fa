package cri

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// listedPods is an upstream with the sandboxes of a node.
type listedPods struct {
	runtime.RuntimeServiceClient
	p *pinnedNode
}

func (l listedPods) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest, ...grpc.CallOption) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: slices.Clone(l.p.upstream.sandboxes)}, nil
}

// TestFindPod finds the latest sandbox of a pod that is ready.
func TestFindPod(t *testing.T) {
	p := newPinnedNode(t, policy.Off)
	add := func(name, uid, handler string, created int64, state runtime.PodSandboxState) {
		p.upstream.sandboxes = append(p.upstream.sandboxes, &runtime.PodSandbox{
			Id: uid, Metadata: &runtime.PodSandboxMetadata{Namespace: "shop", Name: name, Uid: uid}, RuntimeHandler: handler,
			CreatedAt: created, State: state, Annotations: map[string]string{"a": uid},
		})
	}
	add("web", "first", "kata", 1, runtime.PodSandboxState_SANDBOX_READY)
	add("web", "last", "", 3, runtime.PodSandboxState_SANDBOX_NOTREADY)
	add("web", "second", "other", 2, runtime.PodSandboxState_SANDBOX_READY)
	add("job", "stopped", "", 4, runtime.PodSandboxState_SANDBOX_NOTREADY)
	p.base.runtimes = listedPods{p: p}
	c := &containers{p.base}
	for name, want := range map[string][2]string{"web": {"second", "other"}, "job": {"stopped", ""}} {
		pod, handler, err := c.findPod(t.Context(), "shop", name)
		if err != nil || pod.UID != want[0] || handler != want[1] || pod.Annotations["a"] != want[0] {
			t.Errorf("%s: got %+v, handler %q, %v", name, pod, handler, err)
		}
	}
	for _, name := range []string{"we", "web2", ""} {
		_, _, err := c.findPod(t.Context(), "shop", name)
		var known *imagepin.Error
		if !errors.As(err, &known) || known.Reason != imagepin.UnknownPod || !errdefs.IsNotFound(err) {
			t.Errorf("%q: got %v, want UnknownPod", name, err)
		}
	}
}
