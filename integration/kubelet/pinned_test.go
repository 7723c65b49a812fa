package kubelet

import (
	"strconv"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
)

// testRevisionUsers runs two revisions of one tag whose images have different users. kubelet looks up the user without
// naming the pod. Each container, also after a restart, runs as the user of its own image.
func (r *kubeletRig) testRevisionUsers() {
	was, is := images.Options{Version: "was", User: "1000"}, images.Options{Version: "is"}
	ref, _ := r.push("pinned/users:v1", was)
	start := func(name, revision, class string, pull core.PullPolicy) *core.Pod {
		p := r.pod("users-"+name, class, ref, pull)
		p.Labels = map[string]string{"pod-template-hash": revision}
		r.create(p)
		return p
	}
	old := r.wantLine(start("was", "one", "", core.PullAlways), line("", was, 1000))
	r.push("pinned/users:v1", is)
	young := r.wantLine(start("is", "two", "", core.PullAlways), line("", is, 0))

	r.stop(old)
	r.wantLog(r.waitRestart(old), 1, line("", was, 1000))
	r.stop(young)
	r.wantLog(r.waitRestart(young), 1, line("", is, 0))
	for i, class := range classes {
		name := strconv.Itoa(i)
		p := start("was-"+name, "one", class, core.PullIfNotPresent)
		r.wantLine(p, line(class, was, 1000))
		r.delete(p)
		p = start("is-"+name, "two", class, core.PullIfNotPresent)
		r.wantLine(p, line(class, is, 0))
		r.delete(p)
	}
	r.delete(old)
	r.delete(young)
}

// TestKubeletRestart restarts kubelet with its gate off. kubelet then sends another config.seen for running pods than
// their sandboxes have. Containers with the policy Never still restart in every class.
func TestKubeletRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, "restart", node.Options{}, cluster.KubeletOptions{})
	var pods []*core.Pod
	for _, class := range classes {
		// Each class has its own image.
		opts := images.Options{Version: title(class)}
		ref, _ := r.push("app/"+title(class)+":v1", opts)
		if _, err := r.Pull(r.Ctx, ref, handler(class)); err != nil {
			t.Fatal(err)
		}
		p := r.pod(title(class), class, ref, core.PullNever)
		r.create(p)
		pods = append(pods, r.wantLine(p, line(class, opts, 0)))
	}
	if err := r.k.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := r.k.Start(r.Ctx, cluster.KubeletOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, class := range classes {
		r.stop(pods[i])
		r.wantLog(r.waitRestart(pods[i]), 1, line(class, images.Options{Version: title(class)}, 0))
	}
}
