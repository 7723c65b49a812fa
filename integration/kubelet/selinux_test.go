package kubelet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// testSELinux runs pods with SELinux options while containerd's enable_selinux is off, and on, after the tag has moved: they run the
// pinned digest. containerd gets the options, and refuses an invalid level. A kernel without SELinux, as here, has no labels to look at.
func (r *kubeletRig) testSELinux() {
	tag, digest := r.push("pinned/selinux:v1", images.Options{Version: "first"})
	facts := platformOf("") + ",first"
	valid := &core.SELinuxOptions{User: "system_u", Role: "system_r", Type: "container_t", Level: "s0:c1,c2"}
	const passed = `"selinux_options":{"user":"system_u","role":"system_r","type":"container_t","level":"s0:c1,c2"}`
	invalid := &core.SELinuxOptions{Level: "secret"}
	const refused = `the format of 'level' "secret" is not correct`
	for _, on := range []bool{false, true} {
		if on {
			r.push("pinned/selinux:v1", images.Options{Version: "next"})
			if err := r.Restart(r.Ctx, func(o *node.Options) {
				o.Extra = strings.Replace(o.Extra, "enable_selinux = false", "enable_selinux = true", 1)
			}); err != nil {
				r.T.Fatal(err)
			}
		}
		pod := func(name string, ofPod, ofContainer *core.SELinuxOptions) *core.Pod {
			p := r.reader(fmt.Sprintf("selinux-%s-%t", name, on), "", tag, "/facts", "/v/facts")
			p.Spec.SecurityContext = &core.PodSecurityContext{SELinuxOptions: ofPod}
			p.Spec.Containers[0].SecurityContext = &core.SecurityContext{SELinuxOptions: ofContainer}
			mount(p, tag, "/v", "")
			r.create(p)
			return p
		}
		ok, badContainer, badPod := pod("valid", valid, nil), pod("container", valid, invalid), pod("pod", invalid, nil)
		now := r.waitPod(ok, "ends", terminated)
		r.wantLog(now, 0, facts+"\n"+facts)
		c := now.Status.ContainerStatuses[0]
		if c.ImageID != digest {
			r.T.Errorf("pod %s: got imageID %s, want %s", ok.Name, c.ImageID, digest)
		}
		status, err := r.Runtime().ContainerStatus(r.Ctx, &cri.ContainerStatusRequest{ContainerId: strings.TrimPrefix(c.ContainerID, "containerd://"), Verbose: true})
		if err != nil {
			r.T.Fatal(err)
		}
		if info := status.GetInfo()["info"]; !strings.Contains(info, passed) {
			r.T.Errorf("pod %s: got %s, want %s in it", ok.Name, info, passed)
		}
		now = r.waitPod(badContainer, "is rejected", waiting("CreateContainerError"))
		if m := now.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, refused) {
			r.T.Errorf("container with an invalid level: got message %q, want %q", m, refused)
		}
		testkit.EventuallyIn(r.T, time.Minute, "the sandbox of pod "+badPod.Name+" is refused", func(context.Context) (bool, error) {
			return slices.ContainsFunc(r.k.Proxy.Calls("RunPodSandbox"), func(c cluster.Call) bool {
				return c.Request.(*cri.RunPodSandboxRequest).GetConfig().GetMetadata().GetName() == badPod.Name && c.Err != nil && strings.Contains(c.Err.Error(), refused)
			}), nil
		})
		for _, p := range []*core.Pod{ok, badContainer, badPod} {
			r.delete(p)
		}
	}
}
