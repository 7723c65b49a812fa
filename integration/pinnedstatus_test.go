package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// wantUser runs a pod as kubelet does and fails the test unless it is made of a version and runs as a user.
func (r *rig) wantUser(k node.KubeletPod, opts images.Options, uid int) *node.KubeletResult {
	r.t.Helper()
	res, err := r.RunAsKubelet(r.ctx, k)
	if err != nil {
		r.t.Fatalf("a pod of %s: %v", k.Image, err)
	}
	if want := opts.Line(uid); res.Line != want {
		r.t.Errorf("a pod %v of %s for handler %q prints %q, not %q", k.Labels, k.Image, k.Handler, res.Line, want)
	}
	return res
}

// TestPinnedUser runs two revisions of one tag, whose images have different users: each runs as its own.
func TestPinnedUser(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Extra: consistencyRules, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	was, is := images.Options{Version: "was", User: "1000"}, images.Options{Version: "is"}
	ref, _ := r.push("workload/app:v1", was, images.HostPlatform())
	r.wantUser(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, was, 1000)
	r.push("workload/app:v1", is, images.HostPlatform())
	r.wantUser(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r2"), Image: ref, Always: true}, is, 0)
	again := func() {
		t.Helper()
		for _, handler := range []string{"", "native"} {
			for _, gate := range []bool{false, true} {
				for _, always := range []bool{false, true} {
					for hash, want := range map[string]struct {
						opts images.Options
						uid  int
					}{"r1": {was, 1000}, "r2": {is, 0}} {
						opts := revision("shop", "pod-template-hash", hash)
						opts.Handler = handler
						r.removePod(r.wantUser(node.KubeletPod{PodOptions: opts, Image: ref, Gate: gate, Always: always}, want.opts, want.uid).Pod)
					}
				}
			}
		}
	}
	again()
	r.crash(nil)
	again()
}

// TestPinnedDigestCollected has the pinned digest of a private image collected while the tag's other one is here. kubelet is told
// that it is absent and pulls with the pod's secret, which the node does not have.
func TestPinnedDigestCollected(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Extra: consistencyRules})
	r.reg.SetAuth(&registry.Auth{Public: []string{"pause"}, Users: map[string]registry.User{
		"alice": {Password: alicePassword, Repositories: []string{"**"}},
	}})
	was, is := images.Options{Version: "was"}, images.Options{Version: "is"}
	ref, wasRef := r.push("workload/app:v1", was, images.HostPlatform())
	pod := func(hash string, always bool) node.KubeletPod {
		return node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", hash), Image: ref, Always: always, Auth: asAlice()}
	}
	first := r.wantUser(pod("r1", false), was, 0)
	r.push("workload/app:v1", is, images.HostPlatform())
	r.wantUser(pod("r2", true), is, 0)
	r.removePod(first.Pod)
	r.remove(first.ImageID, "")
	if err := r.GC(r.ctx); err != nil {
		t.Fatal(err)
	}
	if img := r.status(wasRef, ""); img != nil {
		t.Fatalf("the image of the first revision is still here: %v", img)
	}
	again := r.wantUser(pod("r1", false), was, 0)
	if !again.Pulled {
		t.Error("kubelet was told that the pinned digest is here, which was collected")
	}
	if other := r.wantUser(pod("r2", false), is, 0); other.Pulled {
		t.Error("kubelet was told that the digest of the other revision is not here")
	}
}

// TestShortSandboxID makes a container in a sandbox whose ID is cut short, as crictl shows it: it is of the sandbox's platform and
// pinned, and the image is held meanwhile.
func TestShortSandboxID(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Extra: consistencyRules, Handlers: otherTargets})
	one := r.version("workload/app:v1", "one")
	ref := r.reg.Ref("workload/app:v1")
	r.pull(ref, "")
	r.pull(ref, "arm")
	opts := revision("shop", "pod-template-hash", "r1")
	opts.Handler = "arm"
	p, err := r.RunPod(r.ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	r.crash(nil) // what was remembered of the sandbox goes with it
	short := *p
	short.ID = p.ID[:13]
	r.wantLine(&short, node.ContainerOptions{Image: ref}, line(images.Options{Version: "one"}, "linux/arm64"))
	r.wantPins(ref, map[string]string{"workload/shop/pod-template-hash=r1": one})
	if _, err := r.Runtime().StopPodSandbox(r.ctx, &cri.StopPodSandboxRequest{PodSandboxId: short.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Runtime().RemovePodSandbox(r.ctx, &cri.RemovePodSandboxRequest{PodSandboxId: short.ID}); err != nil {
		t.Fatal(err)
	}
	// What is gone says nothing any more: this image is for no handler but the default.
	other, _ := r.push("plain/app:v1", images.Options{}, images.HostPlatform(), "linux/arm64")
	if _, err := r.pullAs(other, call{annotations: seen(p)}); err != nil {
		t.Fatal(err)
	}
	if r.statusAs(other, call{handler: "runc"}) == "" || r.statusAs(other, call{handler: "arm"}) != "" {
		t.Error("a sandbox that was removed by a short ID is still remembered")
	}
	for _, id := range []string{short.ID, "nosuch"} {
		_, err := r.Runtime().CreateContainer(r.ctx, &cri.CreateContainerRequest{
			PodSandboxId: id, SandboxConfig: p.Config, Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: ref}},
		})
		if err == nil || !strings.Contains(err.Error(), "sandbox") {
			t.Errorf("a container in a sandbox that is not there: %v", err)
		}
	}
}

// TestKubeletRestarted asks for a running pod's image with a mark that its sandbox does not have, as kubelet does after a restart.
// What is here for the pod's class is not absent, and its containers can be started again.
func TestKubeletRestarted(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: otherTargets})
	opts := images.Options{}
	ref, _ := r.push("app:v1", opts, images.HostPlatform(), "linux/arm64")
	res, err := r.RunAsKubelet(r.ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: "arm"}, Image: ref})
	if err != nil {
		t.Fatal(err)
	}
	restarted := call{annotations: map[string]string{node.SeenAnnotation: "after the restart", "io.example/note": "x"}}
	if got := r.statusAs(ref, restarted); got != res.ImageID {
		t.Errorf("ImageStatus says %q after a restart of kubelet, not %s", got, res.ImageID)
	}
	r.crash(nil)
	if got := r.statusAs(ref, restarted); got != res.ImageID {
		t.Errorf("ImageStatus says %q after a restart of both, not %s", got, res.ImageID)
	}
	r.wantLine(res.Pod, node.ContainerOptions{Image: res.ImageID, UserImage: ref}, line(opts, "linux/arm64"))
	restarted.annotations[handlerAnnotation] = "runc"
	if got := r.statusAs(ref, restarted); got != "" {
		t.Errorf("ImageStatus says %q for a handler that the image is not ready for", got)
	}
}

// restartedBy runs one more container of an image in a pod with the calls of a kubelet that was restarted and so has another mark for the pod
// than its sandbox.
func (r *rig) restartedBy(seen string, p *node.Pod, ref, handler string, auth *cri.AuthConfig) (line string, pulled bool, err error) {
	again := *p
	again.Config = proto.CloneOf(p.Config)
	again.Config.Annotations[node.SeenAnnotation] = seen
	spec := &cri.ImageSpec{Image: ref, Annotations: again.Config.Annotations, RuntimeHandler: handler}
	status, err := r.Images().ImageStatus(r.ctx, &cri.ImageStatusRequest{Image: spec})
	if err != nil {
		return "", false, err
	}
	c := node.ContainerOptions{Image: status.GetImage().GetId(), UserImage: ref}
	if c.Image == "" {
		res, err := r.Images().PullImage(r.ctx, &cri.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: again.Config})
		if err != nil {
			return "", false, err
		}
		c.Image, pulled = res.ImageRef, true
	}
	if status, err = r.Images().ImageStatus(r.ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		return "", pulled, err
	}
	uid := status.GetImage().GetUid().GetValue()
	c.RunAsUser = &uid
	_, line, err = r.RunContainer(r.ctx, &again, c)
	return line, pulled, err
}

// TestKubeletRestartedPinnedUser restarts a container of a pinned revision after a restart of kubelet, whose first question says nothing of the
// pod: it never runs as the user of the image that the tag means by now, and the next try runs as its own.
func TestKubeletRestartedPinnedUser(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Extra: consistencyRules})
	was, is := images.Options{Version: "was", User: "1000"}, images.Options{Version: "is"}
	ref, _ := r.push("workload/app:v1", was, images.HostPlatform())
	old := r.wantUser(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, was, 1000)
	r.push("workload/app:v1", is, images.HostPlatform())
	r.wantUser(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r2"), Image: ref, Always: true}, is, 0)
	for _, handler := range []string{"", "runc"} {
		for _, crash := range []bool{false, true} {
			if crash {
				r.crash(nil)
			}
			seen := fmt.Sprintf("restart of kubelet, handler %q, crash %t", handler, crash)
			_, _, err := r.restartedBy(seen, old.Pod, ref, handler, nil)
			if status.Code(rootCause(err)) != codes.Unavailable || !strings.Contains(err.Error(), "user") {
				t.Errorf("%s: the first try: %v", seen, err)
			}
			for range 2 {
				if got, pulled, err := r.restartedBy(seen, old.Pod, ref, handler, nil); err != nil || got != was.Line(1000) || pulled {
					t.Errorf("%s: the next one prints %q, pulled %t: %v", seen, got, pulled, err)
				}
			}
		}
	}
}

// TestKubeletRestartedPinnedCollected has the pinned digest of a private image collected before the container is restarted by a kubelet that was
// restarted too: its second try is told that the image is absent, and pulls with the pod's secret.
func TestKubeletRestartedPinnedCollected(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Extra: consistencyRules})
	r.reg.SetAuth(&registry.Auth{Public: []string{"pause"}, Users: map[string]registry.User{
		"alice": {Password: alicePassword, Repositories: []string{"**"}},
	}})
	was, is := images.Options{Version: "was"}, images.Options{Version: "is"}
	ref, _ := r.push("workload/app:v1", was, images.HostPlatform())
	pod := func(hash string) node.KubeletPod {
		return node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", hash), Image: ref, Always: true, Auth: asAlice()}
	}
	old := r.wantUser(pod("r1"), was, 0)
	r.push("workload/app:v1", is, images.HostPlatform())
	r.wantUser(pod("r2"), is, 0)
	if err := old.Container.Remove(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.remove(old.ImageID, "")
	if err := r.GC(r.ctx); err != nil {
		t.Fatal(err)
	}
	_, _, err := r.restartedBy("restarted", old.Pod, ref, "", asAlice())
	failure{name: "ImageNotReady", code: codes.Unauthenticated}.check(t, rootCause(err), ref, targetOf(""))
	if got, pulled, err := r.restartedBy("restarted", old.Pod, ref, "", asAlice()); err != nil || got != was.Line(0) || !pulled {
		t.Errorf("the next try prints %q, pulled %t: %v", got, pulled, err)
	}
}

// TestFailedPullIsNamed has a pull cancelled: the log says of which image.
func TestFailedPullIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true})
	ref, _ := r.push("app:v1", images.Options{}, images.HostPlatform())
	never := make(chan struct{})
	defer close(never)
	r.reg.SetFault(registry.FaultIf(registry.Fault{Hang: never}, registry.Is("HEAD", "")))
	from := r.LogOffset()
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := r.Pull(ctx, ref, "")
		failed <- err
	}()
	awaitRequest(t, r.reg, registry.Is("HEAD", ""))
	cancel()
	if err := <-failed; status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the log names the image", func(context.Context) (bool, error) {
		for l := range strings.Lines(r.LogsSince(from)) {
			if strings.Contains(l, "PullImage failed") {
				if !strings.Contains(l, ref) || !strings.Contains(l, "target=") {
					return false, fmt.Errorf("the log says %s", l)
				}
				return true, nil
			}
		}
		return false, nil
	})
}
