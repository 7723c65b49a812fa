// Package serve tests what is specific to imagepin serve, such as restarts of the containerd beside it. The other
// packages test the rest in both modes.
package serve

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// soon is the timeout of waits. Tests do not measure how long a condition takes.
const soon = time.Minute

// ownSection is the header of imagepin's section.
const ownSection = "[plugins.\"io.containerd.imagepin.v1.images\"]\n"

// serveRig is a registry and a node in mode [node.Serve].
type serveRig struct {
	*testkit.Rig
}

// newRig creates a node and starts nothing. IMAGEPIN_CONCURRENCY_BINARY is as for TestConcurrency: containerd-race
// selects imagepin with the race detector, which must find nothing.
func newRig(t *testing.T, opts node.Options) *serveRig {
	t.Helper()
	r := &serveRig{Rig: &testkit.Rig{T: t, Ctx: testkit.Context(t), Reg: testkit.Registry(t)}}
	opts.Mode, opts.Binary = node.Serve, os.Getenv("IMAGEPIN_CONCURRENCY_BINARY")
	opts.SandboxImage = testkit.PushPause(t, r.Reg)
	n, err := node.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	r.Node = n
	t.Cleanup(func() {
		if _, race, found := strings.Cut(n.Logs(), "WARNING: DATA RACE"); found {
			t.Errorf("the race detector found:%s", race[:min(len(race), 5000)])
		}
		if t.Failed() {
			lines := strings.Split(n.Logs(), "\n")
			t.Logf("the end of the log:\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
		if err := n.Close(); err != nil {
			t.Errorf("cleaning up the node: %v", err)
		}
	})
	r.must(n.Prepare(nil))
	return r
}

// started is newRig, and starts containerd and imagepin serve.
func started(t *testing.T, opts node.Options) *serveRig {
	t.Helper()
	r := newRig(t, opts)
	r.must(r.StartContainerd())
	r.must(r.StartServe())
	r.must(r.WaitReady(r.Ctx))
	return r
}

func (r *serveRig) must(err error) {
	r.T.Helper()
	if err != nil {
		r.T.Fatal(err)
	}
}

// push puts an image for this platform into the registry.
func (r *serveRig) push(ref, version string) string {
	r.T.Helper()
	testkit.Push(r.T, r.Reg, ref, testkit.AppIndex(r.T, images.Options{Version: version}, images.HostPlatform()))
	return r.Reg.Ref(ref)
}

func (r *serveRig) pull(ref, handler string) string {
	r.T.Helper()
	id, err := r.Pull(r.Ctx, ref, handler)
	r.must(err)
	return id
}

// eventually waits for a condition.
func (r *serveRig) eventually(what string, condition func() bool) {
	r.T.Helper()
	testkit.EventuallyIn(r.T, soon, what, func(context.Context) (bool, error) { return condition(), nil })
}

// awaitLog waits until the log contains a text after an offset.
func (r *serveRig) awaitLog(since int64, text string) {
	r.T.Helper()
	r.eventually("the log contains "+text, func() bool { return strings.Contains(r.LogsSince(since), text) })
}

// refused waits until imagepin refuses calls, and returns the reason.
func (r *serveRig) refused() string {
	r.T.Helper()
	var why string
	r.eventually("imagepin refuses calls", func() bool {
		r.Conn().ResetConnectBackoff()
		_, err := r.Images().ListImages(r.Ctx, &cri.ListImagesRequest{})
		why = status.Convert(err).Message()
		return status.Code(err) == codes.Unavailable && strings.HasPrefix(why, "imagepin: ")
	})
	return why
}

// reload changes the options and reloads the configuration.
func (r *serveRig) reload(change func(*node.Options)) {
	r.T.Helper()
	r.must(r.Prepare(change))
	since := r.LogOffset()
	r.must(r.SignalServe(syscall.SIGHUP))
	r.awaitLog(since, "the configuration is reloaded")
}

// imagepin runs the imagepin command and returns its output.
func (r *serveRig) imagepin(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(r.Ctx, soon)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(node.BinDir(), "imagepin"), args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// write writes a file below the node's root and returns its path.
func (r *serveRig) write(name, text string) string {
	r.T.Helper()
	path := r.Path(name)
	r.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// hang makes the registry delay matching requests until release is called. begun waits for such a request.
func (r *serveRig) hang(conditions ...func(registry.Request) bool) (begun func(), release func()) {
	hang := make(chan struct{})
	later := append(slices.Clone(conditions), r.Reg.Later()) // earlier requests were not delayed
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: hang}, conditions...))
	return func() {
			r.T.Helper()
			_, err := r.Reg.Wait(r.Ctx, later...)
			r.must(err)
		}, func() {
			r.Reg.SetFault(nil)
			close(hang)
		}
}

// line returns what a container of a pushed image prints.
func line(version string) string {
	return images.Options{Version: version, Platform: images.HostPlatform()}.Line(0)
}

func quoted(s string) string { return fmt.Sprintf("%q", s) }
