// Package versions runs imagepin serve beside stock containerds of other versions than the one in go.mod.
package versions

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const foreign = "linux/s390x"

// TestVersions runs the main job beside each of them: one tag for two snapshotters and two platforms, after which the tag
// moves for one only, containerd and imagepin are killed, and the registry is gone.
func TestVersions(t *testing.T) {
	found, err := filepath.Glob(filepath.Join(node.BinDir(), "containerd-[0-9]*.[0-9]*"))
	if err != nil || len(found) < 2 {
		t.Fatalf("there are %q (%v); run hack/containerd-versions.sh", found, err)
	}
	for _, dir := range found {
		minor := strings.TrimPrefix(filepath.Base(dir), "containerd-")
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			run(t, dir, minor)
		})
	}
}

func run(t *testing.T, dir, minor string) {
	ctx, reg := testkit.Context(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{
		Mode: node.Serve, BinDir: binaries(t, dir), SandboxImage: testkit.PushPause(t, reg),
		Handlers:   []node.Handler{{Name: "second", Snapshotter: "native"}, {Name: "foreign", Platform: foreign}},
		ServeExtra: "[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.foreign]\nplatform = \"" + foreign + "\"\n",
	})
	// It is what it is said to be.
	version, err := n.Client().Version(ctx)
	if err != nil || !strings.HasPrefix(version.Version, "v"+minor+".") {
		t.Fatalf("containerd is %q, %v", version.Version, err)
	}
	t.Logf("containerd %s", version.Version)

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

// binaries is a directory with containerd and what belongs to it of one version, and everything else as it is built here.
func binaries(t *testing.T, dir string) string {
	t.Helper()
	out := t.TempDir()
	for name, from := range map[string]string{
		node.Stock: filepath.Join(dir, "containerd"), "ctr": filepath.Join(dir, "ctr"),
		"containerd-shim-runc-v2": filepath.Join(dir, "containerd-shim-runc-v2"),
		"imagepin":                filepath.Join(node.BinDir(), "imagepin"), "runc": filepath.Join(node.BinDir(), "runc"),
	} {
		if err := os.Symlink(from, filepath.Join(out, name)); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
