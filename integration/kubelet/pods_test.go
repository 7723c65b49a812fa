package kubelet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// policy makes what is below pinned/ mean one digest for each revision of a workload.
const policy = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
  match = ["*/pinned/**"]
  version_consistency = "workload"
`

// TestPods runs what a node operator runs, on a node with kubelet's gate off (its default) and on one with it on: the cases
// first, all at once, as on a real node; then what kubelet asked for meanwhile is looked at; then containerd is killed.
func TestPods(t *testing.T) {
	t.Parallel()
	for _, gate := range []bool{false, true} {
		t.Run(fmt.Sprintf("gate=%t", gate), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fmt.Sprintf("gate-%t", gate), node.Options{Extra: policy}, cluster.KubeletOptions{Gate: gate})
			r.reg.SetAuth(&registry.Auth{
				Public: []string{"pause", "app/*", "pinned/*"}, Forbidden: true,
				Users: map[string]registry.User{"alice": {Password: "secret", Repositories: []string{"private/*"}}},
			})
			t.Run("cases", func(t *testing.T) {
				for _, c := range []struct {
					name string
					test func(*rig)
				}{
					{"orders", (*rig).testOrders},
					{"never", (*rig).testNever},
					{"nonroot", (*rig).testNonRoot},
					{"volumes", (*rig).testImageVolumes},
					{"private", (*rig).testPrivate},
					{"versions", (*rig).testVersions},
				} {
					t.Run(c.name, func(t *testing.T) {
						t.Parallel()
						c.test(r.in(t))
					})
				}
			})
			if t.Failed() {
				return
			}
			t.Run("wire", func(t *testing.T) { r.in(t).testWire(gate) })
			t.Run("stats", func(t *testing.T) { r.in(t).testStats() })
			t.Run("kill", func(t *testing.T) { r.in(t).testKill() })
		})
	}
}

// testNever runs pods that must not pull: they run where the operator has pulled for their class, and wait where he has not.
func (r *rig) testNever() {
	opts := images.Options{Version: "never"}
	ref, _ := r.push("app/never:v1", opts)
	for i, class := range classes {
		r.imagepin(nil, "pull", ref, "--handler", handler(class))
		if i+1 < len(classes) {
			missing := r.pod("never-absent-"+title(classes[i+1]), classes[i+1], ref, core.PullNever)
			r.create(missing)
			r.waitPod(missing, "is told that the image is not there", func(_ *core.Pod, c core.ContainerStatus) bool {
				return c.State.Waiting != nil && c.State.Waiting.Reason == "ErrImageNeverPull"
			})
			r.delete(missing)
		}
		p := r.pod("never-"+title(class), class, ref, core.PullNever)
		r.create(p)
		r.wantLine(p, line(class, opts, 0))
		r.delete(p)
	}
}

// testNonRoot runs an image whose USER is not root where root is forbidden, and sees that one of root is refused.
func (r *rig) testNonRoot() {
	yes := true
	opts := images.Options{Version: "nonroot", User: "1000"}
	ref, _ := r.push("app/nonroot:v1", opts)
	asRoot, _ := r.push("app/asroot:v1", images.Options{Version: "asroot"})
	for _, class := range classes {
		p := r.pod("nonroot-"+title(class), class, ref, core.PullIfNotPresent)
		p.Spec.SecurityContext = &core.PodSecurityContext{RunAsNonRoot: &yes}
		r.create(p)
		r.wantLine(p, line(class, opts, 1000))
		r.delete(p)

		p = r.pod("asroot-"+title(class), class, asRoot, core.PullIfNotPresent)
		p.Spec.SecurityContext = &core.PodSecurityContext{RunAsNonRoot: &yes}
		r.create(p)
		r.waitPod(p, "is refused", func(_ *core.Pod, c core.ContainerStatus) bool {
			return c.State.Waiting != nil && c.State.Waiting.Reason == "CreateContainerConfigError"
		})
		r.delete(p)
	}
}

// testImageVolumes mounts an image into a container of each class: each sees the one of its platform.
func (r *rig) testImageVolumes() {
	ref, _ := r.push("app/reader:v1", images.Options{Version: "reader"})
	volume, _ := r.push("app/volume:v1", images.Options{Version: "volume", SingleLayer: true})
	for _, class := range classes {
		p := r.pod("volume-"+title(class), class, ref, core.PullIfNotPresent)
		p.Spec.RestartPolicy = core.RestartPolicyNever
		p.Spec.Volumes = []core.Volume{{Name: "v", VolumeSource: core.VolumeSource{
			Image: &core.ImageVolumeSource{Reference: volume, PullPolicy: core.PullIfNotPresent},
		}}}
		p.Spec.Containers[0].Args = []string{"cat", "/volume/facts"}
		p.Spec.Containers[0].VolumeMounts = []core.VolumeMount{{Name: "v", MountPath: "/volume"}}
		r.create(p)
		now := r.waitPod(p, "ends", func(p *core.Pod, _ core.ContainerStatus) bool {
			return p.Status.Phase == core.PodSucceeded || p.Status.Phase == core.PodFailed
		})
		platform := images.HostPlatform()
		if class == other {
			platform = foreign
		}
		r.wantLog(now, 0, platform+",volume")
		r.delete(p)
	}
}

// testPrivate runs pods of a private image: those with the secret run, in each class, and those without never do, although
// the image is there.
func (r *rig) testPrivate() {
	name := r.k.Name + "-alice"
	r.secret(name, "alice", "secret")
	opts := images.Options{Version: "private"}
	ref, _ := r.push("private/app:v1", opts)
	for _, class := range classes {
		for _, pull := range []core.PullPolicy{core.PullIfNotPresent, core.PullAlways} {
			with := r.pod("with-"+title(class)+"-"+strings.ToLower(string(pull)), class, ref, pull)
			with.Spec.ImagePullSecrets = []core.LocalObjectReference{{Name: name}}
			r.create(with)
			r.wantLine(with, line(class, opts, 0))
			r.delete(with)

			without := r.pod("without-"+title(class)+"-"+strings.ToLower(string(pull)), class, ref, pull)
			r.create(without)
			now := r.waitPod(without, "is refused", func(_ *core.Pod, c core.ContainerStatus) bool {
				return c.State.Waiting != nil && slices.Contains([]string{"ErrImagePull", "ImagePullBackOff"}, c.State.Waiting.Reason)
			})
			if m := now.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, "PullAccessDenied") {
				r.t.Errorf("a pod without the secret is told %q", m)
			}
			r.delete(without)
		}
	}
}
