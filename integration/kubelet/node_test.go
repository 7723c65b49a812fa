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

// testStats sees that kubelet can tell what images use on a node with two snapshotters: stock containerd reports an empty
// mountpoint for the second, which breaks kubelet's eviction manager.
func (r *rig) testStats() {
	opts := images.Options{Version: "stats"}
	ref, _ := r.push("app/stats:v1", opts)
	for _, class := range classes {
		p := r.pod("stats-"+title(class), class, ref, core.PullIfNotPresent)
		r.create(p)
		r.wantLine(p, line(class, opts, 0))
		defer r.delete(p)
	}
	type fs struct{ CapacityBytes, AvailableBytes, UsedBytes *uint64 }
	testkit.Eventually(r.t, "/stats/summary is right", func(ctx context.Context) (bool, error) {
		var summary struct {
			Node struct {
				Fs      fs
				Runtime struct{ ImageFs, ContainerFs fs }
			}
			Pods []struct{ PodRef struct{ Name string } }
		}
		if err := r.k.Summary(ctx, &summary); err != nil {
			return false, err
		}
		img := summary.Node.Runtime.ImageFs
		found := 0
		for _, p := range summary.Pods {
			if strings.Contains(p.PodRef.Name, "-stats-") {
				found++
			}
		}
		return found == len(classes) && img.CapacityBytes != nil && *img.CapacityBytes > 0 && img.UsedBytes != nil && *img.UsedBytes > 0 &&
			img.AvailableBytes != nil && *img.AvailableBytes > 0, nil
	})
	// kubelet lists images twice a minute: one of the earlier cases is looked for.
	testkit.EventuallyIn(r.t, 45*time.Second, "the node's status has an image", func(ctx context.Context) (bool, error) {
		status, err := r.k.Status(ctx)
		if err != nil {
			return false, err
		}
		for _, c := range status.Conditions {
			if want := c.Type == core.NodeReady; (c.Status == core.ConditionTrue) != want {
				r.t.Errorf("condition %s of the node is %s: %s", c.Type, c.Status, c.Message)
			}
		}
		for _, i := range status.Images {
			if slices.Contains(i.Names, r.reg.Ref("app/never:v1")) && i.SizeBytes > 0 {
				return true, nil
			}
		}
		return false, nil
	})
	// What stock containerd's empty mountpoints come to.
	for line := range strings.Lines(r.k.LogTail(1 << 20)) {
		if strings.Contains(line, "failed to get summary stats") && strings.Contains(line, "mountpoint") {
			r.t.Errorf("kubelet's eviction manager says %s", line)
		}
	}
}

// testKill kills containerd under running pods of every class. They go on, and new ones of the same image run after it is back.
func (r *rig) testKill() {
	opts := images.Options{Version: "kill"}
	ref, _ := r.push("app/kill:v1", opts)
	var pods []*core.Pod
	for _, class := range classes {
		p := r.pod("kill-"+title(class), class, ref, core.PullIfNotPresent)
		r.create(p)
		pods = append(pods, r.wantLine(p, line(class, opts, 0)))
	}
	if err := r.Kill9(); err != nil {
		r.t.Fatal(err)
	}
	if err := r.Restart(r.ctx, nil); err != nil {
		r.t.Fatal(err)
	}
	for i, class := range classes {
		p := r.pod("after-"+title(class), class, ref, core.PullIfNotPresent)
		r.create(p)
		r.wantLine(p, line(class, opts, 0))
		now := r.waitPod(pods[i], "still runs", running)
		if a, b := now.Status.ContainerStatuses[0], pods[i].Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || a.RestartCount != 0 {
			r.t.Errorf("pod %s runs container %s, restarted %d times, not %s", now.Name, a.ContainerID, a.RestartCount, b.ContainerID)
		}
		r.stop(now)
		now = r.waitPod(now, "restarts", func(_ *core.Pod, c core.ContainerStatus) bool { return c.RestartCount == 1 && c.State.Running != nil })
		r.wantLog(now, 1, line(class, opts, 0))
	}
}

// TestSandboxImageWithoutCredential starts a pod on the second snapshotter when the sandbox image's layers are discarded and its
// registry wants a credential that the node does not have: the pod's events say which setting helps, and it runs once one does.
func TestSandboxImageWithoutCredential(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sandbox", node.Options{}, cluster.KubeletOptions{})
	opts := images.Options{Version: "sandbox"}
	ref, _ := r.push("app/sandbox:v1", opts)
	p := r.pod("default", "", ref, core.PullIfNotPresent)
	r.create(p)
	r.wantLine(p, line("", opts, 0))
	if err := r.GC(r.ctx); err != nil { // layers stay until containerd sees fit to collect them
		t.Fatal(err)
	}
	r.reg.SetAuth(&registry.Auth{Public: []string{"app/*"}})
	p = r.pod("second", second, ref, core.PullIfNotPresent)
	r.create(p)
	testkit.Eventually(t, "the pod's events say what to do", func(ctx context.Context) (bool, error) {
		var events core.EventList
		err := kube.Do(ctx, "GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name="+p.Name, nil, &events)
		return slices.ContainsFunc(events.Items, func(e core.Event) bool {
			return strings.Contains(e.Message, "CannotMakeReady") && strings.Contains(e.Message, "discard_unpacked_layers = false")
		}), err
	})
	r.reg.SetAuth(nil)
	r.wantLine(p, line(second, opts, 0))
}

// layers are how many layers are unpacked, in all snapshotters together.
func (r *rig) layers() int {
	n := 0
	for key := range testkit.State(r.t, r.Node).Snapshots {
		if strings.Contains(key, "/sha256:") {
			n++
		}
	}
	return n
}

// TestImageGC puts a node under pressure of its image filesystem, so that kubelet removes every image that it believes unused:
// what containers and image volumes are made of stays, in their snapshotter, and everything else goes from all of them.
func TestImageGC(t *testing.T) {
	t.Parallel()
	r := newRig(t, "gc", node.Options{}, cluster.KubeletOptions{})
	used, usedVolume := images.Options{Version: "used"}, images.Options{Version: "volume", SingleLayer: true}
	ref, _ := r.push("app/used:v1", used)
	volume, _ := r.push("app/volume:v1", usedVolume)
	unused, _ := r.push("app/unused:v1", images.Options{Version: "unused"})
	var pods []*core.Pod
	for _, class := range classes {
		p := r.pod("used-"+title(class), class, ref, core.PullIfNotPresent)
		// Under pressure kubelet evicts others first, and all of them in the end.
		p.Spec.PriorityClassName = "system-node-critical"
		p.Spec.Volumes = []core.Volume{{Name: "v", VolumeSource: core.VolumeSource{Image: &core.ImageVolumeSource{Reference: volume}}}}
		p.Spec.Containers[0].VolumeMounts = []core.VolumeMount{{Name: "v", MountPath: "/volume"}}
		r.create(p)
		pods = append(pods, r.wantLine(p, line(class, used, 0)))
		if _, err := r.Pull(r.ctx, unused, handler(class)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.k.Stop(); err != nil {
		t.Fatal(err)
	}
	before := r.layers()
	if err := r.k.Start(r.ctx, cluster.KubeletOptions{Config: map[string]any{
		"imageMinimumGCAge": "1ms", "evictionHard": map[string]any{"imagefs.available": "99%"},
	}}); err != nil {
		t.Fatal(err)
	}
	// Once, before it sees that this does not help.
	testkit.EventuallyIn(t, time.Minute, "the unused image is removed for every class", func(ctx context.Context) (bool, error) {
		for _, class := range classes {
			if img, err := r.ImageStatus(ctx, unused, handler(class)); err != nil || img != nil {
				return false, err
			}
		}
		return true, nil
	})
	for i, class := range classes {
		for _, name := range []string{ref, volume} {
			if img, err := r.ImageStatus(r.ctx, name, handler(class)); err != nil || img == nil {
				t.Errorf("class %s: %s is gone, although a pod runs of it: %v", title(class), name, err)
			}
		}
		now := r.waitPod(pods[i], "still runs", running)
		// It can be started again, with what is there.
		r.stop(now)
		now = r.waitPod(now, "restarts", func(_ *core.Pod, c core.ContainerStatus) bool { return c.RestartCount == 1 && c.State.Running != nil })
		r.wantLog(now, 1, line(class, used, 0))
	}
	if err := r.GC(r.ctx); err != nil {
		t.Fatal(err)
	}
	// Each class had one layer more for the unused image: the others are shared.
	if after := r.layers(); before-after != len(classes) {
		t.Errorf("%d layers are unpacked before kubelet's image GC, %d after it", before, after)
	}
	removed := 0
	for _, c := range r.k.Proxy.Calls("RemoveImage") {
		removed++
		if spec := c.Request.(*cri.RemoveImageRequest).GetImage(); !strings.HasPrefix(spec.GetImage(), "sha256:") || spec.GetRuntimeHandler() != "" {
			t.Errorf("kubelet's image GC removes %v, not an ID without a handler", spec)
		}
	}
	if removed == 0 {
		t.Error("kubelet removed no image")
	}
}
