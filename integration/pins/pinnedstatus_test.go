package pins

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
func wantUser(r *testkit.Rig, k node.KubeletPod, opts images.Options, uid int) *node.KubeletResult {
	r.T.Helper()
	res, err := r.RunAsKubelet(r.Ctx, k)
	if err != nil {
		r.T.Fatalf("a pod of %s: %v", k.Image, err)
	}
	if want := opts.Line(uid); res.Line != want {
		r.T.Errorf("a pod %v of %s for handler %q prints %q, not %q", k.Labels, k.Image, k.Handler, res.Line, want)
	}
	return res
}

// TestPinnedUser runs two revisions of one tag, whose images have different users: each runs as its own.
func TestPinnedUser(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	was, is := images.Options{Version: "was", User: "1000"}, images.Options{Version: "is"}
	ref, _ := r.Push("workload/app:v1", was, images.HostPlatform())
	wantUser(r, node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, was, 1000)
	r.Push("workload/app:v1", is, images.HostPlatform())
	wantUser(r, node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r2"), Image: ref, Always: true}, is, 0)
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
						r.MustRemovePod(wantUser(r, node.KubeletPod{PodOptions: opts, Image: ref, Gate: gate, Always: always}, want.opts, want.uid).Pod)
					}
				}
			}
		}
	}
	again()
	r.KillAndRestart(nil)
	again()
}

// TestPinnedDigestCollected has the pinned digest of a private image collected while the tag's other one is here. kubelet is told
// that it is absent and pulls with the pod's secret, which the node does not have.
func TestPinnedDigestCollected(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	r.Reg.SetAuth(&registry.Auth{Public: []string{"pause"}, Users: map[string]registry.User{
		"alice": {Password: testkit.AlicePassword, Repositories: []string{"**"}},
	}})
	was, is := images.Options{Version: "was"}, images.Options{Version: "is"}
	ref, wasRef := r.Push("workload/app:v1", was, images.HostPlatform())
	pod := func(hash string, always bool) node.KubeletPod {
		return node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", hash), Image: ref, Always: always, Auth: testkit.AsAlice()}
	}
	first := wantUser(r, pod("r1", false), was, 0)
	r.Push("workload/app:v1", is, images.HostPlatform())
	wantUser(r, pod("r2", true), is, 0)
	r.MustRemovePod(first.Pod)
	r.MustRemove(first.ImageID, "")
	if err := r.GC(r.Ctx); err != nil {
		t.Fatal(err)
	}
	if img := r.MustStatus(wasRef, ""); img != nil {
		t.Fatalf("the image of the first revision is still here: %v", img)
	}
	again := wantUser(r, pod("r1", false), was, 0)
	if !again.Pulled {
		t.Error("kubelet was told that the pinned digest is here, which was collected")
	}
	if other := wantUser(r, pod("r2", false), is, 0); other.Pulled {
		t.Error("kubelet was told that the digest of the other revision is not here")
	}
}

// TestShortSandboxID makes a container in a sandbox whose ID is cut short, as crictl shows it: it is of the sandbox's platform and
// pinned, and the image is held meanwhile.
func TestShortSandboxID(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	one := r.Version("workload/app:v1", "one")
	ref := r.Reg.Ref("workload/app:v1")
	r.MustPull(ref, "")
	r.MustPull(ref, "arm")
	opts := revision("shop", "pod-template-hash", "r1")
	opts.Handler = "arm"
	p, err := r.RunPod(r.Ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	r.KillAndRestart(nil) // what was remembered of the sandbox goes with it
	short := *p
	short.ID = p.ID[:13]
	r.WantLine(&short, node.ContainerOptions{Image: ref}, testkit.Line(images.Options{Version: "one"}, "linux/arm64"))
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=r1": one})
	if _, err := r.Runtime().StopPodSandbox(r.Ctx, &cri.StopPodSandboxRequest{PodSandboxId: short.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Runtime().RemovePodSandbox(r.Ctx, &cri.RemovePodSandboxRequest{PodSandboxId: short.ID}); err != nil {
		t.Fatal(err)
	}
	// What is gone says nothing any more: this image is for no handler but the default.
	other, _ := r.Push("plain/app:v1", images.Options{}, images.HostPlatform(), "linux/arm64")
	if _, err := r.PullAs(other, testkit.Call{Annotations: testkit.SeenAnnotations(p)}); err != nil {
		t.Fatal(err)
	}
	if r.StatusAs(other, testkit.Call{Handler: "runc"}) == "" || r.StatusAs(other, testkit.Call{Handler: "arm"}) != "" {
		t.Error("a sandbox that was removed by a short ID is still remembered")
	}
	for _, id := range []string{short.ID, "nosuch"} {
		_, err := r.Runtime().CreateContainer(r.Ctx, &cri.CreateContainerRequest{
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
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OtherTargets})
	opts := images.Options{}
	ref, _ := r.Push("app:v1", opts, images.HostPlatform(), "linux/arm64")
	res, err := r.RunAsKubelet(r.Ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: "arm"}, Image: ref})
	if err != nil {
		t.Fatal(err)
	}
	restarted := testkit.Call{Annotations: map[string]string{node.SeenAnnotation: "after the restart", "io.example/note": "x"}}
	if got := r.StatusAs(ref, restarted); got != res.ImageID {
		t.Errorf("ImageStatus says %q after a restart of kubelet, not %s", got, res.ImageID)
	}
	r.KillAndRestart(nil)
	if got := r.StatusAs(ref, restarted); got != res.ImageID {
		t.Errorf("ImageStatus says %q after a restart of both, not %s", got, res.ImageID)
	}
	r.WantLine(res.Pod, node.ContainerOptions{Image: res.ImageID, UserImage: ref}, testkit.Line(opts, "linux/arm64"))
	restarted.Annotations[testkit.HandlerAnnotation] = "runc"
	if got := r.StatusAs(ref, restarted); got != "" {
		t.Errorf("ImageStatus says %q for a handler that the image is not ready for", got)
	}
}

// restartedBy runs one more container of an image in a pod with the calls of a kubelet that was restarted and so has another mark for the pod
// than its sandbox.
func restartedBy(r *testkit.Rig, seen string, p *node.Pod, ref, handler string, auth *cri.AuthConfig) (line string, pulled bool, err error) {
	again := *p
	again.Config = proto.CloneOf(p.Config)
	again.Config.Annotations[node.SeenAnnotation] = seen
	spec := &cri.ImageSpec{Image: ref, Annotations: again.Config.Annotations, RuntimeHandler: handler}
	status, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: spec})
	if err != nil {
		return "", false, err
	}
	c := node.ContainerOptions{Image: status.GetImage().GetId(), UserImage: ref}
	if c.Image == "" {
		res, err := r.Images().PullImage(r.Ctx, &cri.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: again.Config})
		if err != nil {
			return "", false, err
		}
		c.Image, pulled = res.ImageRef, true
	}
	if status, err = r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		return "", pulled, err
	}
	uid := status.GetImage().GetUid().GetValue()
	c.RunAsUser = &uid
	_, line, err = r.RunContainer(r.Ctx, &again, c)
	return line, pulled, err
}

// TestKubeletRestartedPinnedUser restarts a container of a pinned revision after a restart of kubelet, whose first question says nothing of the
// pod: it never runs as the user of the image that the tag means by now, and the next try runs as its own.
func TestKubeletRestartedPinnedUser(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	was, is := images.Options{Version: "was", User: "1000"}, images.Options{Version: "is"}
	ref, _ := r.Push("workload/app:v1", was, images.HostPlatform())
	old := wantUser(r, node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, was, 1000)
	r.Push("workload/app:v1", is, images.HostPlatform())
	wantUser(r, node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r2"), Image: ref, Always: true}, is, 0)
	for _, handler := range []string{"", "runc"} {
		for _, crash := range []bool{false, true} {
			if crash {
				r.KillAndRestart(nil)
			}
			seen := fmt.Sprintf("restart of kubelet, handler %q, crash %t", handler, crash)
			_, _, err := restartedBy(r, seen, old.Pod, ref, handler, nil)
			if status.Code(testkit.RootCause(err)) != codes.Unavailable || !strings.Contains(err.Error(), "user") {
				t.Errorf("%s: the first try: %v", seen, err)
			}
			for range 2 {
				if got, pulled, err := restartedBy(r, seen, old.Pod, ref, handler, nil); err != nil || got != was.Line(1000) || pulled {
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
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	r.Reg.SetAuth(&registry.Auth{Public: []string{"pause"}, Users: map[string]registry.User{
		"alice": {Password: testkit.AlicePassword, Repositories: []string{"**"}},
	}})
	was, is := images.Options{Version: "was"}, images.Options{Version: "is"}
	ref, _ := r.Push("workload/app:v1", was, images.HostPlatform())
	pod := func(hash string) node.KubeletPod {
		return node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", hash), Image: ref, Always: true, Auth: testkit.AsAlice()}
	}
	old := wantUser(r, pod("r1"), was, 0)
	r.Push("workload/app:v1", is, images.HostPlatform())
	wantUser(r, pod("r2"), is, 0)
	if err := old.Container.Remove(r.Ctx); err != nil {
		t.Fatal(err)
	}
	r.MustRemove(old.ImageID, "")
	if err := r.GC(r.Ctx); err != nil {
		t.Fatal(err)
	}
	_, _, err := restartedBy(r, "restarted", old.Pod, ref, "", testkit.AsAlice())
	testkit.Failure{Name: "ImageNotReady", Code: codes.Unauthenticated}.Check(t, testkit.RootCause(err), ref, testkit.TargetOf(""))
	if got, pulled, err := restartedBy(r, "restarted", old.Pod, ref, "", testkit.AsAlice()); err != nil || got != was.Line(0) || !pulled {
		t.Errorf("the next try prints %q, pulled %t: %v", got, pulled, err)
	}
}

// TestFailedPullIsNamed has a pull cancelled: the log says of which image.
func TestFailedPullIsNamed(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	ref, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	never := make(chan struct{})
	defer close(never)
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: never}, registry.Is("HEAD", "")))
	from := r.LogOffset()
	ctx, cancel := context.WithCancel(r.Ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := r.Pull(ctx, ref, "")
		failed <- err
	}()
	testkit.AwaitRequest(t, r.Reg, registry.Is("HEAD", ""))
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
