package install

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// core is imagepin without the parts that a build can leave out.
const core = node.Ours + "-core"

// TestWithoutParts checks imagepin without its parts: it pulls, runs and pins, and has no locks. With a configuration of a part, or a
// lock that was applied before, it serves no CRI. With the part again, the node has what it had.
func TestWithoutParts(t *testing.T) {
	t.Parallel()
	variants := map[string]func(*node.Options){"build": func(o *node.Options) { o.Binary = core }}
	if node.DefaultMode() == node.Plugin {
		variants["disabled plugins"] = func(o *node.Options) {
			o.DisabledPlugins = []string{"io.containerd.imagepin.part.v1.cluster", "io.containerd.imagepin.part.v1.fleet"}
		}
	}
	for name, without := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := node.Options{Extra: testkit.PinRules}
			without(&opts)
			r := testkit.NewRig(t, opts)
			with := func(o *node.Options) { o.Binary, o.DisabledPlugins, o.Extra = node.Ours, nil, testkit.PinRules }
			ref := r.Reg.Ref("pinned/app:v1")
			one := r.Version("pinned/app:v1", "one")
			r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "one")
			two := r.Version("pinned/app:v1", "two")
			r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "one")
			r.WantOperator(0, []string{"images"}, ref, "node")
			r.WantOperator(0, []string{"pin", "ls"}, ref, one[7:19])
			lock := r.WriteLock("lock.yaml", map[string]string{ref: two})
			for _, args := range [][]string{{"apply", lock}, {"lock", "status"}, {"lock", "rm"}, {"rollback"}} {
				r.WantOperator(1, args, "this build of imagepin has no locks")
			}
			if _, err := r.Control().LockStatus(r.Ctx, &api.LockStatusRequest{}); status.Code(err) != codes.Unimplemented {
				t.Errorf("LockStatus: got %v, want Unimplemented", err)
			}

			wantRefused(r, func(o *node.Options) {
				o.Extra += "[plugins.\"" + testkit.OurSection + "\".cluster]\nkubeconfig = \"/etc/kubernetes/kubelet.conf\"\n"
			}, "[plugins.\""+testkit.OurSection+"\"] cluster.kubeconfig: ", "plugin io.containerd.imagepin.part.v1.cluster is in disabled_plugins, or not in this build")

			restart(r, with)
			r.MustApply(lock)
			r.WantVersion(node.KubeletPod{Image: ref}, "two")
			before := r.MustState()
			wantRefused(r, without, "a lock is applied on this node", "plugin io.containerd.imagepin.part.v1.fleet is in disabled_plugins, or not in this build")
			r.Reg.Down()
			restart(r, with)
			r.WantState("after a start without its part", before)
			r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "two")
			r.WantOperator(0, []string{"lock", "rm"}, "Removed the lock")
			restart(r, without)
			r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "one")
		})
	}
}

// TestIgnoredDropDirectory checks that imagepin without locks warns once at its start of files in a drop directory, and serves the CRI.
func TestIgnoredDropDirectory(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	built, err := os.ReadDir(node.BinDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range built {
		if err := os.Symlink(filepath.Join(node.BinDir(), b.Name()), filepath.Join(bin, b.Name())); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"containerd", "imagepin"} {
		script := `#!/bin/sh
dropped='mount -t tmpfs tmpfs /etc && mkdir -p /etc/imagepin/locks.d && touch /etc/imagepin/locks.d/app.yaml && exec "$0" "$@"'
exec unshare --mount sh -c "$dropped" "` + filepath.Join(bin, name) + `-core" "$@"
`
		if err := os.WriteFile(filepath.Join(bin, name+"-dropped"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := testkit.NewRig(t, node.Options{BinDir: bin, Binary: node.Ours + "-dropped", NoPods: true})
	const warning = "ignoring the files in /etc/imagepin/locks.d: plugin io.containerd.imagepin.part.v1.fleet is in disabled_plugins, or not in this build"
	if n := strings.Count(r.Logs(), warning); n != 1 {
		t.Errorf("the log has the warning %d times, want once:\n%s", n, r.Logs())
	}
}

// wantRefused starts the node with other options, and checks that it serves no CRI and says why. containerd then collects garbage.
func wantRefused(r *testkit.Rig, change func(*node.Options), wants ...string) {
	r.T.Helper()
	for _, err := range []error{r.Stop(), r.Prepare(change), r.Launch(r.Ctx)} {
		if err != nil {
			r.T.Fatal(err)
		}
	}
	if node.DefaultMode() == node.Serve {
		ctx, cancel := context.WithTimeout(r.Ctx, r.Options().StartTimeout)
		defer cancel()
		if err := r.Wait(ctx); err == nil || ctx.Err() != nil {
			r.T.Errorf("imagepin serve ended with %v, want an error", err)
		}
		for _, want := range wants {
			if !strings.Contains(r.Logs(), want) {
				r.T.Errorf("the log does not contain %q:\n%s", want, r.Logs())
			}
		}
	} else {
		wantNoCRI(r.T, r.Node, wants...)
	}
	r.Collect()
}

func restart(r *testkit.Rig, change func(*node.Options)) {
	r.T.Helper()
	if err := r.Restart(r.Ctx, change); err != nil {
		r.T.Fatal(err)
	}
}
