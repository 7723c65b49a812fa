package kubelet

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestWithoutCredential starts pods when what they need is gone and the registry wants a credential that the node does not have.
// The layers of the sandbox image are needed in RunPodSandbox: the pod's events say which setting helps, and it runs once one does.
// The digest that is pinned for a pod's revision is absent for kubelet, although the tag's present one is here: kubelet pulls with
// the pod's secret.
func TestWithoutCredential(t *testing.T) {
	t.Parallel()
	r := newRig(t, "without", node.Options{Extra: policy}, cluster.KubeletOptions{})
	users := map[string]registry.User{"alice": {Password: "opensesame", Repositories: []string{"**"}}}
	secret := r.k.Name + "-alice"
	r.secret(secret, "alice", users["alice"].Password)
	start := func(name, class, revision, ref string, pull core.PullPolicy) *core.Pod {
		p := r.pod(name, class, ref, pull)
		p.Labels = map[string]string{"pod-template-hash": revision}
		p.Spec.ImagePullSecrets = []core.LocalObjectReference{{Name: secret}}
		r.create(p)
		return p
	}
	collect := func() { // layers stay until containerd sees fit to collect them
		t.Helper()
		if err := r.GC(r.Ctx); err != nil {
			t.Fatal(err)
		}
	}

	was, is := images.Options{Version: "was"}, images.Options{Version: "is"}
	ref, wasRef := r.push("pinned/private/app:v1", was)
	first := r.wantLine(start("first", "", "one", ref, core.PullAlways), line("", was, 0))
	collect()
	r.Reg.SetAuth(&registry.Auth{Users: users})
	r.push("pinned/private/app:v1", is)
	p := start("sandbox", second, "two", ref, core.PullAlways)
	r.wantAdvice(p)
	r.Reg.SetAuth(&registry.Auth{Users: users, Public: []string{"pause"}})
	r.wantLine(p, line(second, is, 0))

	// Its layers are discarded, and were never unpacked for this class.
	collect()
	elsewhere := r.wantLine(start("class", second, "one", ref, core.PullIfNotPresent), line(second, was, 0))

	// It is collected with all that there was of it.
	for _, p := range []*core.Pod{first, elsewhere} {
		r.delete(p)
		r.gone(p)
	}
	if err := r.RemoveImage(r.Ctx, wasRef, ""); err != nil {
		t.Fatal(err)
	}
	collect()
	if img, err := r.ImageStatus(r.Ctx, wasRef, ""); err != nil || img != nil {
		t.Fatalf("the pinned digest is still here: %v, %v", img, err)
	}
	r.wantLine(start("collected", "", "one", ref, core.PullIfNotPresent), line("", was, 0))
}

// gone waits until a pod that was deleted has no container on the node. It removes those that have ended: kubelet removes them at
// once only where it hears of their end after the pod's sandbox has ended too, and else up to a minute later
// (ContainerGCPeriod, https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/kubelet/kubelet.go).
func (r *kubeletRig) gone(p *core.Pod) {
	r.T.Helper()
	testkit.EventuallyIn(r.T, time.Minute, "pod "+p.Name+" has no container", func(ctx context.Context) (bool, error) {
		all, err := r.Runtime().ListContainers(ctx, &cri.ListContainersRequest{
			Filter: &cri.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": p.Name}},
		})
		for _, c := range all.GetContainers() {
			if c.State == cri.ContainerState_CONTAINER_EXITED {
				// An error is that kubelet is removing it, and the next look says.
				_, _ = r.Runtime().RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.Id})
			}
		}
		return len(all.GetContainers()) == 0, err
	})
}

// wantAdvice waits until a pod's events say what to do where a credential is missing.
func (r *kubeletRig) wantAdvice(p *core.Pod) {
	r.T.Helper()
	testkit.EventuallyIn(r.T, time.Minute, "the events of pod "+p.Name+" say what to do", func(ctx context.Context) (bool, error) {
		var events core.EventList
		err := kube.Do(ctx, "GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name="+p.Name, nil, &events)
		return slices.ContainsFunc(events.Items, func(e core.Event) bool {
			return strings.Contains(e.Message, "ImageNotReady") && strings.Contains(e.Message, "discard_unpacked_layers = false") &&
				strings.Contains(e.Message, "give containerd a credential")
		}), err
	})
}
