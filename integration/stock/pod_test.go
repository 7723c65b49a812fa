package stock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestCloseLeavesNothing checks that Close leaves no files, mounts, cgroups or processes of a node whose containerd was
// killed while a pod runs.
func TestCloseLeavesNothing(t *testing.T) {
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Binary: node.Stock, SandboxImage: testkit.PushPause(t, reg)})
	testkit.Push(t, reg, "app:v1", testkit.App(t, images.Options{}))
	id, err := n.Pull(ctx, reg.Ref("app:v1"), "")
	if err != nil {
		t.Fatal(err)
	}
	pod, err := n.RunPod(ctx, node.PodOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.RunContainer(ctx, pod, node.ContainerOptions{Image: id}); err != nil {
		t.Fatal(err)
	}
	traces := func() []string {
		var found []string
		name := filepath.Base(n.Root())
		if _, err := os.Stat(n.Root()); err == nil {
			found = append(found, n.Root())
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, name) {
				found = append(found, line)
			}
		}
		cgroups, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, cgroups...)
		procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range procs {
			cmdline, _ := os.ReadFile(p) // the process may have exited
			if strings.Contains(string(cmdline), name) {
				found = append(found, p+": "+strings.ReplaceAll(string(cmdline), "\x00", " "))
			}
		}
		return found
	}
	if len(traces()) < 4 {
		t.Fatalf("found too few traces of a running pod: %q", traces())
	}
	if err := n.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if left := traces(); len(left) != 0 {
		t.Errorf("Close leaves:\n%s", strings.Join(left, "\n"))
	}
}

// TestFormats runs images of every media type and compression that the kit builds, and of nested and attested indexes.
func TestFormats(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		ctx := testkit.Context(t)
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{Binary: binary, SandboxImage: testkit.PushPause(t, reg)})
		pod, err := n.RunPod(ctx, node.PodOptions{})
		if err != nil {
			t.Fatal(err)
		}
		run := func(t *testing.T, tag, want string) {
			t.Helper()
			id, err := n.Pull(ctx, reg.Ref(tag), "")
			if err != nil {
				t.Fatal(err)
			}
			_, line, err := n.RunContainer(ctx, pod, node.ContainerOptions{Image: id})
			if err != nil {
				t.Fatal(err)
			}
			if line != want {
				t.Errorf("printed %q, want %q", line, want)
			}
		}
		for _, format := range []images.Format{images.OCI, images.Docker} {
			for _, comp := range []images.Compression{images.Gzip, images.Zstd, images.Uncompressed} {
				name := string(format) + "-" + string(comp)
				t.Run(name, func(t *testing.T) {
					opts := images.Options{Version: name, Format: format, Compression: comp, User: "12:34"}
					testkit.Push(t, reg, "format:"+name, testkit.AppIndex(t, opts, "linux/s390x", images.HostPlatform()))
					run(t, "format:"+name, opts.Line(12))
				})
			}
		}
		t.Run("attested", func(t *testing.T) {
			opts := images.Options{Version: "attested"}
			img := testkit.App(t, opts)
			attestation, err := images.Attestation(img)
			if err != nil {
				t.Fatal(err)
			}
			idx, err := images.Index(images.OCI, attestation, images.Entry{Image: img})
			if err != nil {
				t.Fatal(err)
			}
			testkit.Push(t, reg, "attested:v1", idx)
			run(t, "attested:v1", opts.Line(0))
		})
		t.Run("nested", func(t *testing.T) {
			opts := images.Options{Version: "nested"}
			idx, err := images.Index(images.OCI, images.Entry{Index: testkit.AppIndex(t, opts, "linux/s390x", images.HostPlatform())})
			if err != nil {
				t.Fatal(err)
			}
			testkit.Push(t, reg, "nested:v1", idx)
			run(t, "nested:v1", opts.Line(0))
		})
	})
}

// TestKubeletCalls runs a pod with kubelet's calls, without and with its feature gate. The second pod needs no pull.
func TestKubeletCalls(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		ctx := testkit.Context(t)
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{Binary: binary, SandboxImage: testkit.PushPause(t, reg)})
		opts := images.Options{User: "77"}
		testkit.Push(t, reg, "app:v1", testkit.App(t, opts))
		for i, gate := range []bool{false, true} {
			res, err := n.RunAsKubelet(ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: "runc"}, Image: reg.Ref("app:v1"), Gate: gate})
			if err != nil {
				t.Fatal(err)
			}
			if res.Line != opts.Line(77) || res.Pulled != (i == 0) {
				t.Errorf("gate %t: pulled %t, printed %q", gate, res.Pulled, res.Line)
			}
		}
		if err := n.RemovePods(ctx); err != nil {
			t.Error(err)
		}
	})
}
