package kubelet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestWithoutCredential starts pods on the second snapshotter when layers that they need are discarded and the registry wants a
// credential that the node does not have: in RunPodSandbox those of the sandbox image; in CreateContainer those of the digest
// that is pinned for the pod's revision, where kubelet finds the tag's present one and does not pull. The pod's events say which
// setting helps, and it runs once one does.
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
		if err := r.GC(r.ctx); err != nil {
			t.Fatal(err)
		}
	}

	was, is := images.Options{Version: "was"}, images.Options{Version: "is"}
	ref, _ := r.push("pinned/private/app:v1", was)
	r.wantLine(start("first", "", "one", ref, core.PullAlways), line("", was, 0))
	collect()
	r.reg.SetAuth(&registry.Auth{Users: users})
	r.push("pinned/private/app:v1", is)
	p := start("sandbox", second, "two", ref, core.PullAlways)
	r.wantAdvice(p)
	r.reg.SetAuth(&registry.Auth{Users: users, Public: []string{"pause"}})
	r.wantLine(p, line(second, is, 0))

	collect()
	p = start("container", second, "one", ref, core.PullIfNotPresent)
	r.wantAdvice(p)
	if err := r.Restart(r.ctx, func(o *node.Options) {
		o.Extra += fmt.Sprintf("\n[plugins.\"io.containerd.cri.v1.images\".registry.configs.%q.auth]\n  username = \"alice\"\n  password = %q\n",
			r.reg.Host(), users["alice"].Password)
	}); err != nil {
		t.Fatal(err)
	}
	r.wantLine(p, line(second, was, 0))
}

// wantAdvice waits until a pod's events say what to do where a credential is missing.
func (r *rig) wantAdvice(p *core.Pod) {
	r.t.Helper()
	testkit.EventuallyIn(r.t, time.Minute, "the events of pod "+p.Name+" say what to do", func(ctx context.Context) (bool, error) {
		var events core.EventList
		err := kube.Do(ctx, "GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name="+p.Name, nil, &events)
		return slices.ContainsFunc(events.Items, func(e core.Event) bool {
			return strings.Contains(e.Message, "CannotMakeReady") && strings.Contains(e.Message, "discard_unpacked_layers = false") &&
				strings.Contains(e.Message, "give containerd a credential")
		}), err
	})
}
