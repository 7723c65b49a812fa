// Package serve tests what only imagepin serve has: its life beside a containerd that comes and goes. All else is tested by the
// package above in both modes.
package serve

import (
	"context"
	"fmt"
	"net"
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

// soon is how long is waited for what has to happen. It is no measure of how long that may take.
const soon = time.Minute

// ownSection begins imagepin's section of a configuration.
const ownSection = "[plugins.\"io.containerd.imagepin.v1.images\"]\n"

// serveRig is a registry and a node in mode [node.Serve].
type serveRig struct {
	*testkit.Rig
}

// newRig makes a node and starts nothing. IMAGEPIN_CONCURRENCY_BINARY is as for TestConcurrency: containerd-race stands for imagepin
// under the race detector, which must find nothing.
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
			t.Errorf("the race detector has found:%s", race[:min(len(race), 5000)])
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

// started is newRig with all started.
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

// eventually waits until something is so.
func (r *serveRig) eventually(what string, so func() bool) {
	r.T.Helper()
	testkit.EventuallyIn(r.T, soon, what, func(context.Context) (bool, error) { return so(), nil })
}

// said waits until the log has a text since an offset.
func (r *serveRig) said(since int64, text string) {
	r.T.Helper()
	r.eventually("the log says "+text, func() bool { return strings.Contains(r.LogsSince(since), text) })
}

// refused waits until calls are refused, and gives why.
func (r *serveRig) refused() string {
	r.T.Helper()
	var why string
	r.eventually("calls are refused", func() bool {
		r.Conn().ResetConnectBackoff()
		_, err := r.Images().ListImages(r.Ctx, &cri.ListImagesRequest{})
		why = status.Convert(err).Message()
		return status.Code(err) == codes.Unavailable && strings.HasPrefix(why, "imagepin: ")
	})
	return why
}

// reload changes the options and has the configuration read again.
func (r *serveRig) reload(change func(*node.Options)) {
	r.T.Helper()
	r.must(r.Prepare(change))
	since := r.LogOffset()
	r.must(r.SignalServe(syscall.SIGHUP))
	r.said(since, "the configuration is reloaded")
}

// imagepin runs the imagepin command, which ends by itself, and gives what it printed.
func (r *serveRig) imagepin(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(r.Ctx, soon)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(node.BinDir(), "imagepin"), args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// write puts a file below the node's root.
func (r *serveRig) write(name, text string) string {
	r.T.Helper()
	path := r.Path(name)
	r.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// hang has the registry hang in what matches until release is called, and waits for none. begun waits until it does.
func (r *serveRig) hang(conditions ...func(registry.Request) bool) (begun func(), release func()) {
	held := make(chan struct{})
	when := append(slices.Clone(conditions), r.Reg.Later()) // what matches of before has not hung
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: held}, conditions...))
	return func() {
			r.T.Helper()
			_, err := r.Reg.Wait(r.Ctx, when...)
			r.must(err)
		}, func() {
			r.Reg.SetFault(nil)
			close(held)
		}
}

// freeAddress is a TCP address that nobody uses.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// line is what a container of a pushed image prints.
func line(version string) string {
	return images.Options{Version: version, Platform: images.HostPlatform()}.Line(0)
}

func quoted(s string) string { return fmt.Sprintf("%q", s) }
