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

// policy pins references below pinned/ for each revision of a workload.
const policy = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
  match = ["*/pinned/**"]
  version_consistency = "workload"
`

// access is who may pull: anyone but private images, and alice these.
var access = &registry.Auth{
	Public: []string{"pause", "app/*", "pinned/*"}, Forbidden: true,
	Users: map[string]registry.User{"alice": {Password: "secret", Repositories: []string{"private/*"}}},
}

// TestPods runs pods on a node with kubelet's feature gate off, which is the default, and on a node with it on. The
// cases run at the same time, as on a real node. Then the test checks kubelet's calls and statistics, and kills
// containerd.
func TestPods(t *testing.T) {
	t.Parallel()
	for _, gate := range []bool{false, true} {
		t.Run(fmt.Sprintf("gate=%t", gate), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fmt.Sprintf("gate-%t", gate), node.Options{Extra: policy}, cluster.KubeletOptions{Gate: gate})
			r.Reg.SetAuth(access)
			t.Run("cases", func(t *testing.T) {
				for _, c := range []struct {
					name string
					test func(*kubeletRig)
				}{
					{"orders", (*kubeletRig).testOrders},
					{"never", (*kubeletRig).testNever},
					{"nonroot", (*kubeletRig).testNonRoot},
					{"volumes", (*kubeletRig).testImageVolumes},
					{"private", (*kubeletRig).testPrivate},
					{"versions", (*kubeletRig).testVersions},
					{"users", (*kubeletRig).testRevisionUsers},
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
			t.Run("kill", func(t *testing.T) { r.in(t).testKill(orders()) })
		})
	}
}

// testNever runs pods with the policy Never. They run if the image is pulled for their class, and wait otherwise.
func (r *kubeletRig) testNever() {
	opts := images.Options{Version: "never"}
	ref, _ := r.push("app/never:v1", opts)
	for i, class := range classes {
		r.imagepin(nil, "pull", ref, "--handler", handler(class))
		if i+1 < len(classes) {
			missing := r.pod("never-absent-"+title(classes[i+1]), classes[i+1], ref, core.PullNever)
			r.create(missing)
			r.waitPod(missing, "waits with ErrImageNeverPull", waiting("ErrImageNeverPull"))
			r.delete(missing)
		}
		p := r.pod("never-"+title(class), class, ref, core.PullNever)
		r.create(p)
		r.wantLine(p, line(class, opts, 0))
		r.delete(p)
	}
}

// testNonRoot runs images with and without a USER in pods with runAsNonRoot. Images that run as root are rejected.
func (r *kubeletRig) testNonRoot() {
	yes := true
	nonRoot := func(s *core.PodSpec) { s.SecurityContext = &core.PodSecurityContext{RunAsNonRoot: &yes} }
	user, root := r.pushTrio("nonroot", 1000), r.pushTrio("asroot", 0)
	for _, class := range classes {
		p := r.runTrio(r.createTrio("nonroot", class, user, nonRoot))
		r.delete(p.Pod)
		p = r.createTrio("asroot", class, root, nonRoot)
		r.waitPod(p.Pod, "is rejected", waiting("CreateContainerConfigError"))
		r.delete(p.Pod)
	}
}

// waiting returns the condition that a container is waiting with one of the reasons.
func waiting(reasons ...string) func(*core.Pod, core.ContainerStatus) bool {
	return func(_ *core.Pod, c core.ContainerStatus) bool {
		return c.State.Waiting != nil && slices.Contains(reasons, c.State.Waiting.Reason)
	}
}

// testImageVolumes mounts images into a container of each class, one for each pull policy. Each image has the platform
// of the class.
func (r *kubeletRig) testImageVolumes() {
	ref, _ := r.push("app/reader:v1", images.Options{Version: "reader"})
	volumes := map[core.PullPolicy]string{}
	for _, pull := range policies {
		name := "volume-" + containerOf(pull)
		volumes[pull], _ = r.push("app/"+name+":v1", images.Options{Version: name, SingleLayer: true})
	}
	for _, class := range classes {
		if _, err := r.Pull(r.Ctx, volumes[core.PullNever], handler(class)); err != nil {
			r.T.Fatal(err)
		}
		p := r.pod("volume-"+title(class), class, ref, core.PullIfNotPresent)
		p.Spec.RestartPolicy = core.RestartPolicyNever
		c := &p.Spec.Containers[0]
		c.Args = []string{"cat"}
		var want []string
		for _, pull := range policies {
			name := containerOf(pull)
			p.Spec.Volumes = append(p.Spec.Volumes, core.Volume{Name: name, VolumeSource: core.VolumeSource{
				Image: &core.ImageVolumeSource{Reference: volumes[pull], PullPolicy: pull},
			}})
			c.VolumeMounts = append(c.VolumeMounts, core.VolumeMount{Name: name, MountPath: "/" + name})
			c.Args = append(c.Args, "/"+name+"/facts")
			want = append(want, platformOf(class)+",volume-"+name)
		}
		r.create(p)
		now := r.waitPod(p, "terminates", terminated)
		r.wantLog(now, 0, strings.Join(want, "\n"))
		r.delete(p)
	}
}

// testPrivate runs pods of a private image in each class. Pods with the secret run. Pods without it do not run,
// although the image is on the node: imagepin rejects their pulls, and kubelet's own records reject the policy Never.
func (r *kubeletRig) testPrivate() { r.runPrivate(classes, true) }

// runPrivate is testPrivate for some classes, and for a kubelet that has records of the secrets that have pulled an image
// (KubeletEnsureSecretPulledImages) or not. Without them, pods without the secret run if kubelet does not pull.
func (r *kubeletRig) runPrivate(classes []string, records bool) {
	name := r.k.Name + "-alice"
	r.secret(name, "alice", "secret")
	opts := images.Options{Version: "private"}
	ref, _ := r.push("private/app:v1", opts)
	pod := func(name, class string) *core.Pod {
		p := r.pod(name+"-"+title(class), class, "", "")
		p.Spec.Containers = nil
		for _, pull := range []core.PullPolicy{core.PullIfNotPresent, core.PullNever, core.PullAlways} {
			p.Spec.Containers = append(p.Spec.Containers, core.Container{Name: containerOf(pull), Image: ref, ImagePullPolicy: pull})
		}
		return p
	}
	for _, class := range classes {
		with := pod("with", class)
		with.Spec.ImagePullSecrets = []core.LocalObjectReference{{Name: name}}
		r.create(with)
		now := r.waitPod(with, "runs", running)
		for _, pull := range policies {
			r.wantLogOf(now, containerOf(pull), 0, line(class, opts, 0))
		}
		r.delete(with)

		without := pod("without", class)
		r.create(without)
		rejected := waiting("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull")
		now = r.waitPod(without, "is rejected", func(p *core.Pod, c core.ContainerStatus) bool {
			if !records && c.Name != containerOf(core.PullAlways) {
				return running(p, c)
			}
			return rejected(p, c)
		})
		for _, c := range now.Status.ContainerStatuses {
			w := c.State.Waiting
			switch {
			case w == nil:
				r.wantLogOf(now, c.Name, 0, line(class, opts, 0))
			case c.Name == containerOf(core.PullNever):
				if w.Reason != "ErrImageNeverPull" {
					r.T.Errorf("container with policy Never and without the secret: got reason %s, want ErrImageNeverPull", w.Reason)
				}
			case !strings.Contains(w.Message, "PullAccessDenied"):
				r.T.Errorf("container %s without the secret: got message %q, want PullAccessDenied", c.Name, w.Message)
			}
		}
		r.delete(without)
	}
}
