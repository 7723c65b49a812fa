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

// TestWithoutCredential starts pods whose images are incomplete on a node without a credential for the registry.
// RunPodSandbox fails without the layers of the sandbox image. The pod's events name the settings that help. If the
// digest pinned for the pod's revision is absent, kubelet pulls it with the pod's secret, although the tag's current
// digest is present.
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
	collect := func() { // discarded layers stay until garbage collection
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

	// The layers of the pinned digest are discarded, and it was never unpacked for this class.
	collect()
	elsewhere := r.wantLine(start("class", second, "one", ref, core.PullIfNotPresent), line(second, was, 0))

	// All content of the pinned digest is removed.
	for _, p := range []*core.Pod{first, elsewhere} {
		r.delete(p)
		r.waitNoContainers(p)
	}
	if err := r.RemoveImage(r.Ctx, wasRef, ""); err != nil {
		t.Fatal(err)
	}
	collect()
	if img, err := r.ImageStatus(r.Ctx, wasRef, ""); err != nil || img != nil {
		t.Fatalf("ImageStatus of the removed digest: got %v, %v, want no image", img, err)
	}
	r.wantLine(start("collected", "", "one", ref, core.PullIfNotPresent), line("", was, 0))
}

// TestSecretPulledImages starts pods without a pull secret whose image another pod has pulled with one. With IfNotPresent and Never,
// only kubelet's gate KubeletEnsureSecretPulledImages (on by default since Kubernetes 1.35) keeps them from running it: without the
// gate, kubelet does not ask imagepin to pull. With Always, the registry decides. docs/kubernetes.md says so.
func TestSecretPulledImages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gates map[string]bool
		// The reasons why a pod waits, or "" if it runs.
		ifNotPresent, never string
	}{
		"gate-on":  {nil, "ErrImagePull", "ErrImageNeverPull"},
		"gate-off": {map[string]bool{"KubeletEnsureSecretPulledImages": false}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := cluster.KubeletOptions{}
			if c.gates != nil {
				options.Config = map[string]any{"featureGates": c.gates}
			}
			r := newRig(t, name, node.Options{}, options)
			users := map[string]registry.User{"alice": {Password: "opensesame", Repositories: []string{"private/**"}}}
			r.Reg.SetAuth(&registry.Auth{Users: users, Public: []string{"pause"}})
			r.secret(r.k.Name+"-alice", "alice", users["alice"].Password)
			opts := images.Options{Version: name}
			ref, _ := r.push("private/app:v1", opts)
			start := func(name, secret string, pull core.PullPolicy) *core.Pod {
				p := r.pod(name, "", ref, pull)
				if secret != "" {
					p.Spec.ImagePullSecrets = []core.LocalObjectReference{{Name: secret}}
				}
				r.create(p)
				return p
			}
			want := func(p *core.Pod, reason string) {
				t.Helper()
				if reason == "" {
					r.wantLine(p, line("", opts, 0))
					return
				}
				r.waitPod(p, "waits: "+reason, func(_ *core.Pod, s core.ContainerStatus) bool {
					return s.State.Waiting != nil && s.State.Waiting.Reason == reason
				})
			}
			ofApp := func() int { return r.Reg.Count(registry.In("private/app")) }

			want(start("owner", r.k.Name+"-alice", core.PullIfNotPresent), "")
			r.Reg.Reset()
			want(start("never", "", core.PullNever), c.never)
			if n := ofApp(); n != 0 {
				t.Errorf("Never: %d requests, want none", n)
			}
			want(start("if-not-present", "", core.PullIfNotPresent), c.ifNotPresent)
			if n := ofApp(); (n > 0) != (c.ifNotPresent != "") {
				t.Errorf("IfNotPresent: %d requests\n%s", n, r.Reg.Dump())
			}
			want(start("always", "", core.PullAlways), "ErrImagePull")
			// The owner needs no request with the gate either: kubelet knows the secret.
			r.Reg.Reset()
			r.Reg.Down()
			want(start("owner-again", r.k.Name+"-alice", core.PullIfNotPresent), "")
		})
	}
}

// waitNoContainers waits until a deleted pod has no container on the node. It removes exited containers, because
// kubelet may take a minute to remove them: it removes them at once only if it learns of their exit after that of the
// sandbox (ContainerGCPeriod, https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/kubelet/kubelet.go).
func (r *kubeletRig) waitNoContainers(p *core.Pod) {
	r.T.Helper()
	testkit.EventuallyIn(r.T, time.Minute, "pod "+p.Name+" has no container", func(ctx context.Context) (bool, error) {
		all, err := r.Runtime().ListContainers(ctx, &cri.ListContainersRequest{
			Filter: &cri.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": p.Name}},
		})
		for _, c := range all.GetContainers() {
			if c.State == cri.ContainerState_CONTAINER_EXITED {
				// This fails if kubelet is removing the container. The next iteration lists again.
				_, _ = r.Runtime().RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.Id})
			}
		}
		return len(all.GetContainers()) == 0, err
	})
}

// wantAdvice waits until an event of a pod contains the hint about a missing credential.
func (r *kubeletRig) wantAdvice(p *core.Pod) {
	r.T.Helper()
	testkit.EventuallyIn(r.T, time.Minute, "an event of pod "+p.Name+" has the hint", func(ctx context.Context) (bool, error) {
		var events core.EventList
		err := kube.Do(ctx, "GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name="+p.Name, nil, &events)
		return slices.ContainsFunc(events.Items, func(e core.Event) bool {
			return strings.Contains(e.Message, "ImageNotReady") && strings.Contains(e.Message, "discard_unpacked_layers = false") &&
				strings.Contains(e.Message, "give containerd a credential")
		}), err
	})
}
