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

// wantUser runs a pod as kubelet does and fails the test unless it runs an image as a user.
func wantUser(r *testkit.Rig, k node.KubeletPod, opts images.Options, uid int) *node.KubeletResult {
	r.T.Helper()
	res, err := r.RunAsKubelet(r.Ctx, k)
	if err != nil {
		r.T.Fatalf("a pod of %s: %v", k.Image, err)
	}
	if want := opts.Line(uid); res.Line != want {
		r.T.Errorf("pod %v of %s for handler %q: got %q, want %q", k.Labels, k.Image, k.Handler, res.Line, want)
	}
	return res
}

// TestPinnedUser checks that two revisions of one tag run as the users of their own images.
func TestPinnedUser(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	old, current := images.Options{Version: "old", User: "1000"}, images.Options{Version: "current"}
	ref, _ := r.Push("workload/app:v1", old, images.HostPlatform())
	wantUser(r, node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, old, 1000)
	r.Push("workload/app:v1", current, images.HostPlatform())
	wantUser(r, node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r2"), Image: ref, Always: true}, current, 0)
	checkAll := func() {
		t.Helper()
		for _, handler := range []string{"", "native"} {
			for _, gate := range []bool{false, true} {
				for _, always := range []bool{false, true} {
					for hash, want := range map[string]struct {
						opts images.Options
						uid  int
					}{"r1": {old, 1000}, "r2": {current, 0}} {
						opts := revision("shop", "pod-template-hash", hash)
						opts.Handler = handler
						r.MustRemovePod(wantUser(r, node.KubeletPod{PodOptions: opts, Image: ref, Gate: gate, Always: always}, want.opts, want.uid).Pod)
					}
				}
			}
		}
	}
	checkAll()
	r.KillAndRestart(nil)
	checkAll()
}

// TestUserOfAnotherRevision pulls the image of another revision just before kubelet looks up the user of a pinned one. The
// lookup returns the other image's user, which is a name. CreateContainer fails, and succeeds on kubelet's next try.
func TestUserOfAnotherRevision(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	old := images.Options{Version: "old", User: "1000"}
	ref, _ := r.Push("workload/app:v1", old, images.HostPlatform())
	first := wantUser(r, node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, old, 1000)
	next := node.ContainerOptions{
		Image: first.ImageID, UserImage: ref, Labels: map[string]string{node.ContainerNameLabel: "app"},
	}
	if got := r.StatusAs(ref, testkit.Call{Annotations: testkit.SeenAnnotations(first.Pod)}); got != first.ImageID {
		t.Errorf("ImageStatus of the pinned revision: got %q, want %s", got, first.ImageID)
	}

	r.Push("workload/app:v1", images.Options{Version: "current", User: "root"}, images.HostPlatform())
	other := &node.Pod{Config: r.PodConfig(revision("shop", "pod-template-hash", "r2"))}
	if _, err := r.PullWith(r.Ctx, ref, node.PullOptions{Pod: other}); err != nil {
		t.Fatal(err)
	}
	next.RunAsUsername = r.MustStatus(ref, "").GetUsername()
	_, err := r.CreateContainer(r.Ctx, first.Pod, next)
	if status.Code(testkit.RootCause(err)) != codes.Unavailable || !strings.Contains(err.Error(), `"root" of another image`) {
		t.Errorf("CreateContainer as user %q: got error %v, want Unavailable", next.RunAsUsername, err)
	}

	r.StatusAs(ref, testkit.Call{Annotations: testkit.SeenAnnotations(first.Pod)})
	uid := r.MustStatus(ref, "").GetUid().GetValue()
	next.RunAsUser, next.RunAsUsername = &uid, ""
	r.WantLine(first.Pod, next, old.Line(1000))
}

// TestPinnedDigestCollected collects the pinned digest of a private image, while the tag's other digest stays.
// ImageStatus reports it as absent, and kubelet pulls with the pod's secret.
func TestPinnedDigestCollected(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	r.Reg.SetAuth(&registry.Auth{Public: []string{"pause"}, Users: map[string]registry.User{
		"alice": {Password: testkit.AlicePassword, Repositories: []string{"**"}},
	}})
	old, current := images.Options{Version: "old"}, images.Options{Version: "current"}
	ref, oldRef := r.Push("workload/app:v1", old, images.HostPlatform())
	pod := func(hash string, always bool) node.KubeletPod {
		return node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", hash), Image: ref, Always: always, Auth: testkit.AsAlice()}
	}
	first := wantUser(r, pod("r1", false), old, 0)
	r.Push("workload/app:v1", current, images.HostPlatform())
	wantUser(r, pod("r2", true), current, 0)
	r.MustRemovePod(first.Pod)
	r.MustRemove(first.ImageID, "")
	if err := r.GC(r.Ctx); err != nil {
		t.Fatal(err)
	}
	if img := r.MustStatus(oldRef, ""); img != nil {
		t.Fatalf("ImageStatus of the collected image: got %v, want none", img)
	}
	again := wantUser(r, pod("r1", false), old, 0)
	if !again.Pulled {
		t.Error("ImageStatus reported the collected digest as present")
	}
	if other := wantUser(r, pod("r2", false), current, 0); other.Pulled {
		t.Error("ImageStatus reported the digest of the other revision as absent")
	}
}

// TestShortSandboxID creates a container with a shortened sandbox ID, as crictl shows it. The container has the
// platform of the sandbox and is pinned.
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
	r.KillAndRestart(nil) // clears the cache of sandboxes
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
	// A removed sandbox identifies no handler: this pull is for the default handler.
	other, _ := r.Push("plain/app:v1", images.Options{}, images.HostPlatform(), "linux/arm64")
	if _, err := r.PullAs(other, testkit.Call{Annotations: testkit.SeenAnnotations(p)}); err != nil {
		t.Fatal(err)
	}
	if r.StatusAs(other, testkit.Call{Handler: "runc"}) == "" || r.StatusAs(other, testkit.Call{Handler: "arm"}) != "" {
		t.Error("a sandbox that was removed by a short ID is still cached")
	}
	for _, id := range []string{short.ID, "nosuch"} {
		_, err := r.Runtime().CreateContainer(r.Ctx, &cri.CreateContainerRequest{
			PodSandboxId: id, SandboxConfig: p.Config, Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: ref}},
		})
		if err == nil || !strings.Contains(err.Error(), "sandbox") {
			t.Errorf("CreateContainer in an unknown sandbox: got error %v", err)
		}
	}
}

// TestKubeletRestarted requests a running pod's image with another annotation config.seen than its sandbox has, as
// kubelet does after a restart. ImageStatus finds the image for the pod's handler, and containers can start again.
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
		t.Errorf("ImageStatus after a restart of kubelet: got %q, want %s", got, res.ImageID)
	}
	r.KillAndRestart(nil)
	if got := r.StatusAs(ref, restarted); got != res.ImageID {
		t.Errorf("ImageStatus after a restart of kubelet and containerd: got %q, want %s", got, res.ImageID)
	}
	r.WantLine(res.Pod, node.ContainerOptions{Image: res.ImageID, UserImage: ref}, testkit.Line(opts, "linux/arm64"))
	restarted.Annotations[testkit.HandlerAnnotation] = "runc"
	if got := r.StatusAs(ref, restarted); got != "" {
		t.Errorf("ImageStatus for a handler without the image: got %q, want none", got)
	}
}

// runAfterKubeletRestart runs another container of an image in a pod with the calls of a restarted kubelet. Their
// annotation config.seen differs from that of the sandbox.
func runAfterKubeletRestart(r *testkit.Rig, seen string, p *node.Pod, ref, handler string, auth *cri.AuthConfig) (line string, pulled bool, err error) {
	restarted := *p
	restarted.Config = proto.CloneOf(p.Config)
	restarted.Config.Annotations[node.SeenAnnotation] = seen
	spec := &cri.ImageSpec{Image: ref, Annotations: restarted.Config.Annotations, RuntimeHandler: handler}
	status, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: spec})
	if err != nil {
		return "", false, err
	}
	c := node.ContainerOptions{Image: status.GetImage().GetId(), UserImage: ref}
	if c.Image == "" {
		res, err := r.Images().PullImage(r.Ctx, &cri.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: restarted.Config})
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
	_, line, err = r.RunContainer(r.Ctx, &restarted, c)
	return line, pulled, err
}

// TestKubeletRestartedPinnedUser restarts a container of a pinned revision after a restart of kubelet. The first
// attempt does not identify the pod, and fails instead of running as another image's user. The next ones succeed.
func TestKubeletRestartedPinnedUser(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	old, current := images.Options{Version: "old", User: "1000"}, images.Options{Version: "current"}
	ref, _ := r.Push("workload/app:v1", old, images.HostPlatform())
	first := wantUser(r, node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, old, 1000)
	r.Push("workload/app:v1", current, images.HostPlatform())
	wantUser(r, node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r2"), Image: ref, Always: true}, current, 0)
	for _, handler := range []string{"", "runc"} {
		for _, crash := range []bool{false, true} {
			if crash {
				r.KillAndRestart(nil)
			}
			seen := fmt.Sprintf("restart of kubelet, handler %q, crash %t", handler, crash)
			_, _, err := runAfterKubeletRestart(r, seen, first.Pod, ref, handler, nil)
			if status.Code(testkit.RootCause(err)) != codes.Unavailable || !strings.Contains(err.Error(), "user") {
				t.Errorf("%s: first attempt: got error %v, want Unavailable", seen, err)
			}
			for range 2 {
				if got, pulled, err := runAfterKubeletRestart(r, seen, first.Pod, ref, handler, nil); err != nil || got != old.Line(1000) || pulled {
					t.Errorf("%s: next attempt: got %q, pulled %t: %v", seen, got, pulled, err)
				}
			}
		}
	}
}

// TestKubeletRestartedPinnedCollected collects the pinned digest of a private image before a restarted kubelet restarts
// the container. On the second attempt, ImageStatus reports it as absent, and kubelet pulls with the pod's secret.
func TestKubeletRestartedPinnedCollected(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	r.Reg.SetAuth(&registry.Auth{Public: []string{"pause"}, Users: map[string]registry.User{
		"alice": {Password: testkit.AlicePassword, Repositories: []string{"**"}},
	}})
	old, current := images.Options{Version: "old"}, images.Options{Version: "current"}
	ref, _ := r.Push("workload/app:v1", old, images.HostPlatform())
	pod := func(hash string) node.KubeletPod {
		return node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", hash), Image: ref, Always: true, Auth: testkit.AsAlice()}
	}
	first := wantUser(r, pod("r1"), old, 0)
	r.Push("workload/app:v1", current, images.HostPlatform())
	wantUser(r, pod("r2"), current, 0)
	if err := first.Container.Remove(r.Ctx); err != nil {
		t.Fatal(err)
	}
	r.MustRemove(first.ImageID, "")
	if err := r.GC(r.Ctx); err != nil {
		t.Fatal(err)
	}
	_, _, err := runAfterKubeletRestart(r, "restarted", first.Pod, ref, "", testkit.AsAlice())
	testkit.Failure{Name: "ImageNotReady", Code: codes.Unauthenticated}.Check(t, testkit.RootCause(err), ref, testkit.TargetOf(""))
	if got, pulled, err := runAfterKubeletRestart(r, "restarted", first.Pod, ref, "", testkit.AsAlice()); err != nil || got != old.Line(0) || !pulled {
		t.Errorf("next attempt: got %q, pulled %t: %v", got, pulled, err)
	}
}

// TestFailedPullIsLogged checks that the log names the image of a cancelled pull.
func TestFailedPullIsLogged(t *testing.T) {
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
					return false, fmt.Errorf("no reference or target in log line %s", l)
				}
				return true, nil
			}
		}
		return false, nil
	})
}
