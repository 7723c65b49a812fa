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

// TestStartBeforeContainerd starts imagepin serve first. It refuses calls until containerd runs.
func TestStartBeforeContainerd(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true})
	ref := r.push("app:v1", "v1")
	r.must(r.StartServe())
	if why := r.waitRefused("waiting for containerd"); !strings.Contains(why, r.ContainerdAddress()) {
		t.Errorf("got refusal %q", why)
	}
	waits := "waiting for containerd\" error=\"containerd on " + r.ContainerdAddress() + ": dial unix " + r.ContainerdAddress() + ": connect: no such file or directory\"\n"
	if n := strings.Count(r.Logs(), waits); n != 1 {
		t.Errorf("%d lines say what it waits for, want 1:\n%s", n, r.Logs())
	}
	r.must(r.StartContainerd())
	r.must(r.WaitReady(r.Ctx))
	r.pull(ref, "")
}

// TestContainerdIsKilled kills containerd during a pull and restarts it. imagepin refuses calls meanwhile. Then it has
// its images without registry requests, handles events again, and has nothing left of the interrupted pull.
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
		t.Errorf("got refusal %q", why)
	}
	release()
	if err := <-ended; err == nil {
		t.Error("a pull succeeded without containerd")
	}
	r.must(r.StartContainerd())
	r.must(r.WaitReady(r.Ctx))
	if r.PID() != serve {
		t.Error("imagepin serve was restarted")
	}

	r.Reg.Reset()
	img, err := r.ImageStatus(r.Ctx, before, "")
	r.must(err)
	if img.GetId() != id {
		t.Errorf("got image %s, want %s", img.GetId(), id)
	}
	pod, err := r.RunPod(r.Ctx, node.PodOptions{})
	r.must(err)
	_, got, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Image: id})
	r.must(err)
	if got != line("v1") {
		t.Errorf("the container printed %q", got)
	}
	if n := len(r.Reg.Requests()); n > 0 {
		t.Errorf("got %d requests to the registry, want none:\n%s", n, r.Reg.Dump())
	}
	r.must(r.RemovePod(r.Ctx, pod))

	_, err = r.Ctr(r.Ctx, "images", "tag", before, "registry.example/by-ctr:v1")
	r.must(err)
	r.eventually("the image that ctr tagged is listed", func() bool {
		img, err := r.ImageStatus(r.Ctx, "registry.example/by-ctr:v1", "")
		return err == nil && img.GetId() == id
	})
	_, err = r.Ctr(r.Ctx, "images", "rm", "registry.example/by-ctr:v1")
	r.must(err)

	r.wantNoProblems("after containerd was killed", checker.Options{Pods: true})
	r.pull(cut, "second")
	r.wantNoProblems("in the end", checker.Options{Pods: true})
}

// wantNoProblems waits until the checker finds no problems on the node.
func (r *serveRig) wantNoProblems(when string, opts checker.Options) {
	r.T.Helper()
	opts.Native = images.HostPlatform()
	var problems []string
	defer func() {
		if r.T.Failed() {
			r.T.Logf("%s the node has problems:\n%s", when, strings.Join(problems, "\n"))
		}
	}()
	r.eventually("the node has no problems "+when, func() bool {
		var err error
		problems, err = checker.Check(r.Ctx, r.Node, opts)
		return err == nil && len(problems) == 0
	})
}

// TestContainerdChanges restarts containerd with a new handler, which imagepin serves without a restart. Then
// containerd loses the handler: imagepin refuses calls and names the configured key until the key is removed. The image stays, and
// is ready when the handler is back.
func TestContainerdChanges(t *testing.T) {
	t.Parallel()
	r := started(t, node.Options{NoPods: true})
	ref := r.push("app:v1", "v1")
	id := r.pull(ref, "")
	if _, err := r.Pull(r.Ctx, ref, "second"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("pull for an unknown handler: got %v, want InvalidArgument", err)
	}

	r.containerdWith(func(o *node.Options) { o.Handlers = []node.Handler{{Name: "second", Snapshotter: "native"}} })
	r.must(r.WaitReady(r.Ctx))
	r.Reg.Reset()
	if got := r.pull(ref, "second"); got != id {
		t.Errorf("got image %s, want %s", got, id)
	}
	state, err := r.State(r.Ctx)
	r.must(err)
	if len(state.SnapshotsOf("native")) == 0 {
		t.Error("got no snapshots for the new handler")
	}

	r.reload(func(o *node.Options) {
		o.ServeExtra = "[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.second]\nplatform = \"linux/arm64\"\n"
	})
	r.containerdWith(func(o *node.Options) { o.Handlers = nil })
	if why := r.waitRefused("runtime_platforms.second"); !strings.Contains(why, "unknown runtime handler") {
		t.Errorf("got refusal %q", why)
	}
	r.must(r.Prepare(func(o *node.Options) { o.ServeExtra = "" }))
	r.must(r.SignalServe(syscall.SIGHUP))
	r.must(r.WaitReady(r.Ctx))
	img, err := r.ImageStatus(r.Ctx, ref, "")
	r.must(err)
	if img.GetId() != id {
		t.Errorf("got image %s, want %s", img.GetId(), id)
	}
	r.must(r.GC(r.Ctx))
	state, err = r.State(r.Ctx)
	r.must(err)
	if len(state.SnapshotsOf("native")) == 0 {
		t.Error("the snapshots of the removed handler are gone")
	}
	r.containerdWith(func(o *node.Options) { o.Handlers = []node.Handler{{Name: "second", Snapshotter: "native"}} })
	r.must(r.WaitReady(r.Ctx))
	r.eventually("the image is ready for the handler that is back", func() bool {
		img, err := r.ImageStatus(r.Ctx, ref, "second")
		return err == nil && img.GetId() == id
	})
}

// containerdWith restarts containerd with other options. It does not reload imagepin serve.
func (r *serveRig) containerdWith(change func(*node.Options)) {
	r.T.Helper()
	r.must(r.EndContainerd(syscall.SIGTERM))
	r.must(r.Prepare(change))
	r.must(r.StartContainerd())
}

// waitRefused waits until imagepin refuses calls with a reason that contains a text. It returns the reason.
func (r *serveRig) waitRefused(because string) (why string) {
	r.T.Helper()
	r.eventually("imagepin refuses calls because of "+because, func() bool {
		why = r.refused()
		return strings.Contains(why, because)
	})
	return why
}

// TestUnknownMethodsAreForwarded checks that containerd answers calls of unknown CRI methods. The socket does not serve
// containerd's own API.
func TestUnknownMethodsAreForwarded(t *testing.T) {
	t.Parallel()
	r := started(t, node.Options{NoPods: true})
	for method, want := range map[string]string{
		"/runtime.v1.RuntimeService/OfNextYear":        "unknown method OfNextYear",
		"/runtime.v2.RuntimeService/Version":           "unknown service runtime.v2.RuntimeService",
		"/containerd.services.images.v1.Images/List":   "containerd's own API is on containerd's socket",
		"/containerd.services.version.v1.Version/Read": "containerd's own API is on containerd's socket",
	} {
		err := r.Conn().Invoke(r.Ctx, method, &cri.VersionRequest{}, &cri.VersionResponse{})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", method, err, want)
		}
	}
}
