// Package versions tests imagepin with every version of containerd that it is for, in it and beside it, and that imagepin serve
// refuses those that are too old. What was found is written to a file, which is what the table in RELEASES.md has to say.
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

// soon is how long is waited for what has to happen. It is no measure of how long that may take.
const soon = time.Minute

// TestVersions runs the main job with each: one tag for two snapshotters and two platforms, after which the tag moves for one only,
// containerd and imagepin are killed, and the registry is gone.
func TestVersions(t *testing.T) {
	all, err := matrix.Read(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	results := filepath.Join(node.BinDir(), "versions.tsv")
	if err := os.RemoveAll(results); err != nil {
		t.Fatal(err)
	}
	found := make([]matrix.Containerd, len(all))
	for i, c := range all {
		found[i] = matrix.Containerd{Name: c.Name, Plugin: matrix.Untested, Serve: matrix.Untested}
	}
	t.Run("with", func(t *testing.T) {
		for i, c := range all {
			if c.Plugin == matrix.Works {
				t.Run(c.Name+" in it", func(t *testing.T) {
					t.Parallel()
					mainJob(t, c, node.Plugin)
					found[i].Plugin = matrix.Works
				})
			}
			t.Run(c.Name+" beside it", func(t *testing.T) {
				t.Parallel()
				switch c.Serve {
				case matrix.Works:
					mainJob(t, c, node.Serve)
				case matrix.Refused:
					refused(t, c)
				}
				found[i].Serve = c.Serve
			})
		}
	})
	if t.Failed() {
		return
	}
	if err := os.WriteFile(results, matrix.Format(found), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mainJob(t *testing.T, c matrix.Containerd, mode node.Mode) {
	ctx, reg := testkit.Context(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{
		Mode: mode, BinDir: binaries(t, c), SandboxImage: testkit.PushPause(t, reg),
		Handlers: []node.Handler{{Name: "second", Snapshotter: "native"}, {Name: "foreign", Platform: foreign}},
	})
	// It is what it is said to be.
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
		t.Errorf("containerd is %q, not %q", version.Version, want)
	}

	push := func(v string) {
		testkit.Push(t, reg, "team/app:stable", testkit.AppIndex(t, images.Options{Version: v}, images.HostPlatform(), foreign))
	}
	ref := reg.Ref("team/app:stable")
	platformOf := map[string]string{node.DefaultHandler: images.HostPlatform(), "second": images.HostPlatform(), "foreign": foreign}
	runs := func(handler, v string, always bool) {
		t.Helper()
		res, err := n.RunAsKubelet(ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref, Always: always})
		if err != nil {
			t.Fatalf("%s: %v", handler, err)
		}
		want := images.Options{Version: v, Platform: platformOf[handler]}.Line(0)
		if res.Line != want {
			t.Errorf("%s printed %q, want %q", handler, res.Line, want)
		}
		if err := n.RemovePod(ctx, res.Pod); err != nil {
			t.Error(err)
		}
	}
	push("v1")
	for handler := range platformOf {
		runs(handler, "v1", true)
	}
	push("v2")
	runs(node.DefaultHandler, "v2", true)
	runs("second", "v1", false)
	runs("foreign", "v1", false)

	if err := n.Kill9(); err != nil {
		t.Fatal(err)
	}
	reg.Down()
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	runs(node.DefaultHandler, "v2", false)
	runs("second", "v1", false)
	runs("foreign", "v1", false)
}

// refused starts imagepin serve beside a containerd that is too old: it ends, and says why.
func refused(t *testing.T, c matrix.Containerd) {
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
		t.Error("imagepin serve ended as if all were well")
	}
	if want := "it is containerd " + version + ", but 2.1 or later is required"; !strings.Contains(n.Logs(), want) {
		t.Errorf("the log does not say %q", want)
	}
}

// oldConfig is a configuration in the last format that containerd 1 knows.
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

// binaries is a directory with a containerd and what belongs to it, under the names that a node knows them by, and everything else
// as it is built here.
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
