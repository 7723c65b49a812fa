package apply

import (
	"os"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// TestPullEndsImport applies a bundle of private images for one target, or for all. Until a pull, anyone gets them by digest. One
// answer of the registry, to a pull for one target, ends that for all targets, also after a restart and without the registry.
func TestPullEndsImport(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: testkit.OtherTargets})
	nobody, guessed := (*cri.AuthConfig)(nil), &cri.AuthConfig{Username: "alice", Password: "guessed"}
	handlers := []string{"", "native", "arm"}
	pull := func(ref, handler string, auth *cri.AuthConfig) error {
		_, err := r.PullWith(r.Ctx, ref, node.PullOptions{Auth: auth, Handler: handler})
		return err
	}
	var refs []string
	refused := func(want testkit.Failure) {
		t.Helper()
		for _, ref := range refs {
			for _, handler := range handlers {
				for _, auth := range []*cri.AuthConfig{nobody, guessed} {
					want.Check(t, pull(ref, handler, auth), ref, testkit.TargetOf(handler))
				}
			}
		}
	}
	allowed := func() {
		t.Helper()
		for _, ref := range refs {
			for _, handler := range handlers {
				if err := pull(ref, handler, testkit.AsAlice()); err != nil {
					t.Errorf("with the credential, %s for handler %q: %v", ref, handler, err)
				}
			}
		}
	}
	for repo, c := range map[string]struct {
		imported []string // handlers of the apply; none means all
		pulled   string   // the handler of the pull
	}{
		"one":   {[]string{""}, ""},
		"other": {[]string{"native"}, "arm"},
		"all":   {handlers, "native"},
	} {
		tag := r.Reg.Ref(repo + "/app:v1")
		d := r.Version(repo+"/app:v1", repo)
		digest := r.Reg.Ref(repo + "/app@" + d)
		bundle := makeBundle(r, repo+".tar", writeLock(r, repo+".yaml", map[string]string{tag: d}))
		args := []string{"apply", bundle}
		for _, handler := range c.imported {
			args = append(args, "--handler", testkit.HandlerName(handler))
		}
		r.Reg.SetAuth(testkit.OnlyAlice(false))
		r.Reg.Reset()
		imagepinWants(r, 0, args, "Applied lock")
		for _, handler := range c.imported {
			if err := pull(digest, handler, nobody); err != nil {
				t.Errorf("%s for handler %q before the pull: %v", repo, handler, err)
			}
		}
		r.WantNoRequests("an image of a bundle")
		if err := pull(tag, c.pulled, testkit.AsAlice()); err != nil {
			t.Fatalf("%s: %v", repo, err)
		}
		refs = []string{digest, tag}
		refused(testkit.Unauthenticated)
		allowed()
		r.KillAndRestart(nil)
		refused(testkit.Unauthenticated)
		r.Reg.Down()
		refused(testkit.ManifestUnavailable)
		allowed()
		if err := r.Reg.Up(); err != nil {
			t.Fatal(err)
		}
		r.Reg.SetAuth(nil)
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
	imagepinWants(r, 1, []string{"apply"}, "UnknownLock", "neither a lock nor a bundle", r.Path("locks.d"), r.Path("bundles"))
	imagepinWants(r, 1, []string{"apply", "--dry-run"}, "UnknownLock")
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

// TestHandlersOfDropDirectories starts a node with a handler of another platform than that of its bundles. The handlers of one apply
// are those of the next bundle too, which the node applies when it starts.
func TestHandlersOfDropDirectories(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: testkit.OtherTargets, Extra: `
[plugins."io.containerd.imagepin.v1.images"]
bundles_directory = "{root}/bundles"
`})
	ref := r.Reg.Ref("shop/app:v1")
	old := r.Version("shop/app:v1", "old")
	first := makeBundle(r, "1.tar", writeLock(r, "first.yaml", map[string]string{ref: old}), "--platform", images.HostPlatform())
	moved := r.Version("shop/app:v1", "moved")
	second := makeBundle(r, "2.tar", writeLock(r, "second.yaml", map[string]string{ref: moved}), "--platform", images.HostPlatform())
	withoutRegistry(r)
	if err := os.Mkdir(r.Path("bundles"), 0o755); err != nil {
		t.Fatal(err)
	}
	drop := func(path string) {
		t.Helper()
		if err := os.Rename(path, filepath.Join(r.Path("bundles"), filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	drop(first)
	imagepinWants(r, 1, []string{"apply"}, "NotInBundle", "linux/arm64", "--handler")
	imagepinWants(r, 0, []string{"apply", "--handler", testkit.HandlerName("")}, "1 made ready for "+testkit.HandlerName(""))
	drop(second)
	r.KillAndRestart(nil)
	r.Eventually("the second bundle is applied", func() bool { return r.Pins(ref)["lock"].GetRoot().GetDigest() == moved })
	imagepinWants(r, 0, []string{"lock", "status"}, "for "+testkit.HandlerName(""), "1 locked, 1 ready")
	imagepinWants(r, 1, []string{"apply", "--all-handlers"}, "NotInBundle")
	imagepinWants(r, 0, []string{"apply"}, "0 made ready for "+testkit.HandlerName(""))
}
