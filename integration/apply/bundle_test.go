package apply

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// makeBundle writes a bundle of a lock with the imagepin command, as on another machine, and returns its path.
func makeBundle(r *testkit.Rig, name, lock string, args ...string) string {
	r.T.Helper()
	path := r.Path(name)
	imagepinWants(r, 0, append([]string{"bundle", lock, "-o", path}, args...))
	return path
}

// withoutRegistry makes the registry of a rig unreachable.
func withoutRegistry(r *testkit.Rig) { r.Reg.Down() }

// TestBundleWithoutRegistry applies a bundle on a node that reaches no registry. Pods start, also with the pull policy Always,
// for each handler whose platform the image has.
func TestBundleWithoutRegistry(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]node.Options{
		"layers kept": {Handlers: testkit.OtherTargets}, "layers discarded": {Handlers: testkit.OtherTargets, DiscardUnpackedLayers: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, opts)
			ref, amd := r.Reg.Ref("shop/app:v1"), r.Reg.Ref("shop/amd:v1")
			old := r.Version("shop/app:v1", "old")
			_, only := r.Push("shop/amd:v1", images.Options{Version: "only"}, images.HostPlatform())
			bundle := makeBundle(r, "b.tar.zst", writeLock(r, "lock.yaml", map[string]string{ref: old, amd: testkit.DigestIn(only)}))
			r.MustRemovePod(r.MustPod("")) // the sandbox image
			r.MustRemovePod(r.MustPod("native"))
			r.MustRemovePod(r.MustPod("arm"))
			withoutRegistry(r)
			imagepinWants(r, 0, []string{"apply", bundle, "--dry-run"}, "Would apply")
			imagepinWants(r, 0, []string{"apply", bundle}, "Applied lock", old[7:19])
			for _, handler := range []string{"", "native", "arm"} {
				for _, always := range []bool{false, true} {
					r.WantVersion(node.KubeletPod{Image: ref, Always: always, PodOptions: node.PodOptions{Handler: handler}}, "old")
				}
			}
			r.WantVersion(node.KubeletPod{Image: amd, Always: true}, "only")
			imagepinWants(r, 0, []string{"lock", "status"}, "2 locked, 2 ready, 2 running, 0 missing")
			r.KillAndRestart(nil)
			r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "old")
			imagepinWants(r, 0, []string{"check", "--deep"})
		})
	}
}

// TestDropDirectories starts a node whose drop directories have a bundle, and later another one.
func TestDropDirectories(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: `
[plugins."io.containerd.imagepin.v1.images"]
locks_directory = "{root}/locks.d"
bundles_directory = "{root}/bundles"
`})
	ref := r.Reg.Ref("shop/app:v1")
	old := r.Version("shop/app:v1", "old")
	first := writeLock(r, "first.yaml", map[string]string{ref: old})
	moved := r.Version("shop/app:v1", "moved")
	second := writeLock(r, "second.yaml", map[string]string{ref: moved})
	if err := os.Mkdir(r.Path("bundles"), 0o755); err != nil {
		t.Fatal(err)
	}
	drop := func(name, lock string, args ...string) {
		t.Helper()
		if err := os.Rename(makeBundle(r, name, lock, args...), filepath.Join(r.Path("bundles"), name)); err != nil {
			t.Fatal(err)
		}
	}
	drop("1.tar.zst", first)
	withUpdate := makeBundle(r, "2.tar.zst", second, "--since", first)
	r.MustRemovePod(r.MustPod(""))
	withoutRegistry(r)
	r.KillAndRestart(nil)
	applied := func(digest string) func() bool {
		return func() bool { return r.Pins(ref)["lock"].GetRoot().GetDigest() == digest }
	}
	r.Eventually("the first bundle is applied", applied(old))
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "old")
	if err := os.Rename(withUpdate, filepath.Join(r.Path("bundles"), "2.tar.zst")); err != nil {
		t.Fatal(err)
	}
	r.KillAndRestart(nil)
	r.Eventually("the second bundle is applied", applied(moved))
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "moved")
	imagepinWants(r, 0, []string{"rollback"}, "Applied lock")
	imagepinWants(r, 10, []string{"lock", "status"}, "from 1.tar.zst, images from a bundle") // the pods run the other digest
	r.KillAndRestart(nil)                                                                    // what was rolled back is not applied again
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "old")
	imagepinWants(r, 0, []string{"apply"}, "Applied lock", moved[7:19])
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "moved")
}
