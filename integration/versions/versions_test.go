// Package versions tests imagepin with every supported version of containerd, as plugin and as imagepin serve, and that
// imagepin serve refuses older versions. It writes the results to a file, which must match the table in RELEASES.md.
package versions

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/integration/versions/matrix"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const foreign = "linux/s390x"

// soon is the timeout of waits. Tests do not measure how long a condition takes.
const soon = time.Minute

// TestVersions runs the main job with each version, or checks that imagepin serve refuses it.
func TestVersions(t *testing.T) {
	all, err := matrix.Read(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	results := filepath.Join(node.BinDir(), "versions.tsv")
	if err := os.RemoveAll(results); err != nil {
		t.Fatal(err)
	}
	outcomes := make([]matrix.Containerd, len(all))
	for i, c := range all {
		outcomes[i] = matrix.Containerd{Name: c.Name, Plugin: matrix.Untested, Serve: matrix.Untested}
	}
	t.Run("with", func(t *testing.T) {
		for i, c := range all {
			if c.Plugin == matrix.Works {
				t.Run(c.Name+" plugin", func(t *testing.T) {
					t.Parallel()
					mainJob(t, c, node.Plugin)
					outcomes[i].Plugin = matrix.Works
				})
			}
			t.Run(c.Name+" serve", func(t *testing.T) {
				t.Parallel()
				switch c.Serve {
				case matrix.Works:
					mainJob(t, c, node.Serve)
				case matrix.Refused:
					wantRefused(t, c)
				}
				outcomes[i].Serve = c.Serve
			})
		}
	})
	if t.Failed() {
		return
	}
	if err := os.WriteFile(results, matrix.Format(outcomes), 0o644); err != nil {
		t.Fatal(err)
	}
}

// mainJob runs pods of one tag with two snapshotters and two platforms. Then the tag moves and is pulled for one
// handler, containerd and imagepin are killed, and the pods run again while the registry is down.
func mainJob(t *testing.T, c matrix.Containerd, mode node.Mode) {
	ctx, reg := testkit.Context(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{
		Mode: mode, BinDir: binaries(t, c), SandboxImage: testkit.PushPause(t, reg),
		Handlers: []node.Handler{{Name: "second", Snapshotter: "native"}, {Name: "foreign", Platform: foreign}},
	})
	version, err := n.Client().Version(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("containerd %s", version.Version)
	want := c.Version
	if mode == node.Plugin {
		want += "+imagepin"
	}
	if c.Version != "" && version.Version != want {
		t.Errorf("got containerd %q, want %q", version.Version, want)
	}

	push := func(v string) {
		testkit.Push(t, reg, "team/app:stable", testkit.AppIndex(t, images.Options{Version: v}, images.HostPlatform(), foreign))
	}
	ref := reg.Ref("team/app:stable")
	platformOf := map[string]string{node.DefaultHandler: images.HostPlatform(), "second": images.HostPlatform(), "foreign": foreign}
	wantRun := func(handler, v string, always bool) {
		t.Helper()
		res, err := n.RunAsKubelet(ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref, Always: always})
		if err != nil {
			t.Fatalf("running a pod of handler %s: %v", handler, err)
		}
		want := images.Options{Version: v, Platform: platformOf[handler]}.Line(0)
		if res.Line != want {
			t.Errorf("a pod of handler %s printed %q, want %q", handler, res.Line, want)
		}
		if err := n.RemovePod(ctx, res.Pod); err != nil {
			t.Error(err)
		}
	}
	push("v1")
	for handler := range platformOf {
		wantRun(handler, "v1", true)
	}
	push("v2")
	wantRun(node.DefaultHandler, "v2", true)
	wantRun("second", "v1", false)
	wantRun("foreign", "v1", false)

	if err := n.Kill9(); err != nil {
		t.Fatal(err)
	}
	reg.Down()
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	wantRun(node.DefaultHandler, "v2", false)
	wantRun("second", "v1", false)
	wantRun("foreign", "v1", false)
}

// wantRefused checks that imagepin serve exits with an error if containerd is too old.
func wantRefused(t *testing.T, c matrix.Containerd) {
	ctx := testkit.Context(t)
	n, err := node.New(node.Options{Mode: node.Serve, BinDir: binaries(t, c), NoPods: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", n.Logs())
		}
		if err := n.Close(); err != nil {
			t.Errorf("cleaning up the node: %v", err)
		}
	})
	if err := n.Prepare(nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.Config(), oldConfig(n), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.StartContainerd(); err != nil {
		t.Fatal(err)
	}
	var version string
	testkit.EventuallyIn(t, soon, "containerd answers", func(ctx context.Context) (bool, error) {
		v, err := n.Client().Version(ctx)
		version = v.Version
		return err == nil, nil
	})
	t.Logf("containerd %s", version)
	if err := n.StartServe(); err != nil {
		t.Fatal(err)
	}
	if err := n.Wait(ctx); err == nil {
		t.Error("imagepin serve exited without an error")
	}
	if want := "it is containerd " + version + ", but 2.1 or later is required"; !strings.Contains(n.Logs(), want) {
		t.Errorf("the log does not contain %q", want)
	}
}

// oldConfig returns a configuration in the last format of containerd 1.
func oldConfig(n *node.Node) []byte {
	return []byte(strings.ReplaceAll(`version = 2
root = "{root}/root"
state = "{root}/state"
temp = "{root}/tmp"
[grpc]
address = "{root}/containerd.sock"
[ttrpc]
address = "{root}/containerd.sock.ttrpc"
[debug]
address = "{root}/debug.sock"
[plugins."io.containerd.grpc.v1.cri"]
disable_tcp_service = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{root}/cni/bin"
conf_dir = "{root}/cni/conf"
[plugins."io.containerd.internal.v1.opt"]
path = "{root}/opt"
[plugins."io.containerd.nri.v1.nri"]
disable = true
`, "{root}", n.Root()))
}

// binaries returns a directory with the binaries of a containerd, and the other binaries of this repository, under the
// names that a node expects.
func binaries(t *testing.T, c matrix.Containerd) string {
	t.Helper()
	if c.Dir == "" {
		return node.BinDir()
	}
	dir, out := filepath.Join(node.BinDir(), c.Dir), t.TempDir()
	for name, from := range map[string]string{
		node.Ours: filepath.Join(dir, "containerd-imagepin"), node.Stock: filepath.Join(dir, "containerd"),
		"ctr": filepath.Join(dir, "ctr"), "containerd-shim-runc-v2": filepath.Join(dir, "containerd-shim-runc-v2"),
		"imagepin": filepath.Join(node.BinDir(), "imagepin"), "runc": filepath.Join(node.BinDir(), "runc"),
	} {
		if err := os.Symlink(from, filepath.Join(out, name)); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
