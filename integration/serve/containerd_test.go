package serve

import (
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/checker"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// TestStartBeforeContainerd starts imagepin serve first: its socket answers that it waits, and serves once containerd is there.
func TestStartBeforeContainerd(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true})
	ref := r.push("app:v1", "v1")
	r.must(r.StartServe())
	if why := r.waitRefused("waiting for containerd"); !strings.Contains(why, r.ContainerdAddress()) {
		t.Errorf("calls are refused because %s", why)
	}
	r.must(r.StartContainerd())
	r.must(r.WaitReady(r.Ctx))
	r.pull(ref, "")
}

// TestContainerdIsKilled kills containerd in the middle of a pull and starts it again: calls are refused meanwhile, what was pulled before
// is there again without the registry, what another tool does from then on is noticed, and the pull that was cut off has left nothing.
func TestContainerdIsKilled(t *testing.T) {
	t.Parallel()
	r := started(t, node.Options{Handlers: []node.Handler{{Name: "second", Snapshotter: "native"}}})
	before := r.push("before:v1", "v1")
	id := r.pull(before, "")
	r.pull(r.Options().SandboxImage, "")
	cut := r.push("cut:v1", "v2")
	begun, release := r.hang(registry.Is("GET", registry.Blob))
	ended := make(chan error, 1)
	go func() {
		_, err := r.Pull(r.Ctx, cut, "second")
		ended <- err
	}()
	begun()
	serve := r.PID()
	r.must(r.EndContainerd(syscall.SIGKILL))
	if why := r.refused(); !strings.Contains(why, "containerd") {
		t.Errorf("calls are refused because %s", why)
	}
	release()
	if err := <-ended; err == nil {
		t.Error("a pull succeeded without a containerd")
	}
	r.must(r.StartContainerd())
	r.must(r.WaitReady(r.Ctx))
	if r.PID() != serve {
		t.Error("imagepin serve was started again")
	}

	r.Reg.Reset()
	img, err := r.ImageStatus(r.Ctx, before, "")
	r.must(err)
	if img.GetId() != id {
		t.Errorf("the image is %s, not %s", img.GetId(), id)
	}
	pod, err := r.RunPod(r.Ctx, node.PodOptions{})
	r.must(err)
	_, got, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Image: id})
	r.must(err)
	if got != line("v1") {
		t.Errorf("it prints %q", got)
	}
	if n := len(r.Reg.Requests()); n > 0 {
		t.Errorf("%d requests to the registry:\n%s", n, r.Reg.Dump())
	}
	r.must(r.RemovePod(r.Ctx, pod))

	_, err = r.Ctr(r.Ctx, "images", "tag", before, "registry.example/by-ctr:v1")
	r.must(err)
	r.eventually("what ctr has tagged is listed", func() bool {
		img, err := r.ImageStatus(r.Ctx, "registry.example/by-ctr:v1", "")
		return err == nil && img.GetId() == id
	})
	_, err = r.Ctr(r.Ctx, "images", "rm", "registry.example/by-ctr:v1")
	r.must(err)

	r.sound("after containerd was killed", checker.Options{Pods: true})
	r.pull(cut, "second")
	r.sound("in the end", checker.Options{Pods: true})
}

// sound waits until nothing is wrong with the node.
func (r *serveRig) sound(when string, opts checker.Options) {
	r.T.Helper()
	opts.Native = images.HostPlatform()
	var problems []string
	defer func() {
		if r.T.Failed() {
			r.T.Logf("%s this is wrong with the node:\n%s", when, strings.Join(problems, "\n"))
		}
	}()
	r.eventually("nothing is wrong with the node "+when, func() bool {
		var err error
		problems, err = checker.Check(r.Ctx, r.Node, opts)
		return err == nil && len(problems) == 0
	})
}

// TestContainerdChanges starts another containerd underneath, with one handler more: it is served without a restart. Then one that has
// a handler less, of which the configuration speaks: calls are refused with the key that is wrong, until that is mended and read again.
func TestContainerdChanges(t *testing.T) {
	t.Parallel()
	r := started(t, node.Options{NoPods: true})
	ref := r.push("app:v1", "v1")
	id := r.pull(ref, "")
	if _, err := r.Pull(r.Ctx, ref, "second"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a handler that there is not: %v", err)
	}

	r.containerdWith(func(o *node.Options) { o.Handlers = []node.Handler{{Name: "second", Snapshotter: "native"}} })
	r.must(r.WaitReady(r.Ctx))
	r.Reg.Reset()
	if got := r.pull(ref, "second"); got != id {
		t.Errorf("the image is %s, not %s", got, id)
	}
	state, err := r.State(r.Ctx)
	r.must(err)
	if len(state.SnapshotsOf("native")) == 0 {
		t.Error("nothing is unpacked for the new handler")
	}

	r.reload(func(o *node.Options) {
		o.ServeExtra = "[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.second]\nplatform = \"linux/arm64\"\n"
	})
	r.containerdWith(func(o *node.Options) { o.Handlers = nil })
	if why := r.waitRefused("runtime_platforms.second"); !strings.Contains(why, "unknown runtime handler") {
		t.Errorf("calls are refused because %s", why)
	}
	r.must(r.Prepare(func(o *node.Options) { o.ServeExtra = "" }))
	r.must(r.SignalServe(syscall.SIGHUP))
	r.must(r.WaitReady(r.Ctx))
	img, err := r.ImageStatus(r.Ctx, ref, "")
	r.must(err)
	if img.GetId() != id {
		t.Errorf("the image is %s, not %s", img.GetId(), id)
	}
	r.eventually("what the handler had in its snapshotter is gone", func() bool {
		r.must(r.GC(r.Ctx))
		state, err := r.State(r.Ctx)
		r.must(err)
		return len(state.SnapshotsOf("native")) == 0
	})
}

// containerdWith ends containerd and starts it with other options, which imagepin serve is not told of.
func (r *serveRig) containerdWith(change func(*node.Options)) {
	r.T.Helper()
	r.must(r.EndContainerd(syscall.SIGTERM))
	r.must(r.Prepare(change))
	r.must(r.StartContainerd())
}

// waitRefused waits until calls are refused because of something.
func (r *serveRig) waitRefused(because string) (why string) {
	r.T.Helper()
	r.eventually("calls are refused because of "+because, func() bool {
		why = r.refused()
		return strings.Contains(why, because)
	})
	return why
}

// TestUnknownMethodsArePassedOn calls methods that no CRI has: it is containerd that says so. Containerd's own services are not on this
// socket.
func TestUnknownMethodsArePassedOn(t *testing.T) {
	t.Parallel()
	r := started(t, node.Options{NoPods: true})
	for method, says := range map[string]string{
		"/runtime.v1.RuntimeService/OfNextYear":        "unknown method OfNextYear",
		"/runtime.v2.RuntimeService/Version":           "unknown service runtime.v2.RuntimeService",
		"/containerd.services.images.v1.Images/List":   "containerd's own API is on containerd's socket",
		"/containerd.services.version.v1.Version/Read": "containerd's own API is on containerd's socket",
	} {
		err := r.Conn().Invoke(r.Ctx, method, &cri.VersionRequest{}, &cri.VersionResponse{})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", method, err)
		}
	}
}
