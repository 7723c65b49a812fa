package apply

import (
	"os"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// writeLock is [testkit.Rig.WriteLock].
func writeLock(r *testkit.Rig, name string, locked map[string]string) string {
	r.T.Helper()
	return r.WriteLock(name, locked)
}

// imagepinWants is [testkit.Rig.WantOperator].
func imagepinWants(r *testkit.Rig, code int, args []string, words ...string) string {
	r.T.Helper()
	return r.WantOperator(code, args, words...)
}

// TestApplyFromRegistry applies locks whose images are in a registry: pods run what the lock names, whatever the tag is, until
// another lock is applied, and go back with a rollback.
func TestApplyFromRegistry(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	ref := r.Reg.Ref("shop/app:v1")
	old := r.Version("shop/app:v1", "old")
	first := writeLock(r, "first.yaml", map[string]string{ref: old})
	moved := r.Version("shop/app:v1", "moved")
	second := writeLock(r, "second.yaml", map[string]string{ref: moved})

	imagepinWants(r, 0, []string{"lock", "status"}, "none")
	imagepinWants(r, 0, []string{"apply", first}, "Applied lock", old[7:19])
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "old")
	r.WantVersion(node.KubeletPod{Image: ref, PodOptions: node.PodOptions{Handler: testkit.Second}}, "old")
	if p := r.Pins(ref)["lock"]; p.GetRoot().GetDigest() != old || p.GetMadeBy() != "lock" || !p.GetRetain() {
		t.Errorf("pin of the lock: got %v", p)
	}
	imagepinWants(r, 0, []string{"lock", "status"}, "1 locked, 1 ready, 1 running, 0 missing")

	imagepinWants(r, 0, []string{"apply", second}, "Applied lock", old[7:19], moved[7:19])
	imagepinWants(r, 10, []string{"lock", "status"}, "2 run another digest than the lock")
	r.WantVersion(node.KubeletPod{Image: ref}, "moved")

	r.Reg.Down()
	imagepinWants(r, 0, []string{"rollback"}, "Applied lock", old[7:19])
	r.WantVersion(node.KubeletPod{Image: ref}, "old")
	r.KillAndRestart(nil)
	r.WantVersion(node.KubeletPod{Image: ref}, "old")
	imagepinWants(r, 1, []string{"pin", "set", ref, moved}, "LockedReference")
	absent := writeLock(r, "absent.yaml", map[string]string{ref: "sha256:" + strings.Repeat("0", 64)})
	imagepinWants(r, 1, []string{"apply", absent}, "CannotPullImage")
	imagepinWants(r, 10, []string{"lock", "status"}, "Failed:", "absent.yaml")
	imagepinWants(r, 1, []string{"apply", r.Path("config.toml")}, "InvalidLock: config.toml: ")
	imagepinWants(r, 0, []string{"lock", "rm"}, "Removed the lock")
	if out := imagepinWants(r, 0, []string{"lock", "status"}); strings.Contains(out, "Failed") {
		t.Errorf("a failed apply is reported after the lock was removed:\n%s", out)
	}
	imagepinWants(r, 1, []string{"rollback"}, "UnknownLock")
}

// TestRelocated applies a lock whose images imgpkg has copied to another repository, and a bundle of it: the tag means the digest,
// and its content comes from the copy.
func TestRelocated(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]func(r *testkit.Rig, lock string) string{
		"lock":   func(_ *testkit.Rig, lock string) string { return lock },
		"bundle": func(r *testkit.Rig, lock string) string { return makeBundle(r, "b.tar.zst", lock) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{Handlers: testkit.OtherTargets, DiscardUnpackedLayers: true, Extra: relocatedRules})
			original, copied := r.Reg.Ref("shop/app:v1"), r.Reg.Ref("copies/app:v1")
			digest := r.Version("copies/app:v1", "copied")
			path := writeRelocated(r, original, copied, digest)
			imagepinWants(r, 0, []string{"apply", file(r, path)}, "Applied lock", original)
			for _, handler := range []string{"native", "arm", ""} {
				r.MustRemovePod(r.MustPod(handler)) // the sandbox image
			}
			r.Reg.Down()
			for _, handler := range []string{"", "native", "arm"} {
				r.WantVersion(node.KubeletPod{Image: original, Always: true, PodOptions: node.PodOptions{Handler: handler}}, "copied")
			}
			r.WantVersion(node.KubeletPod{Image: r.Reg.Ref("shop/app@" + digest)}, "copied")
			imagepinWants(r, 0, []string{"lock", "status"}, "1 locked, 1 ready, 1 running, 0 missing")
			imagepinWants(r, 0, []string{"check", "--deep"})
		})
	}
}

// writeRelocated writes a lock of an image that imgpkg has copied to another repository.
func writeRelocated(r *testkit.Rig, original, copied, digest string) string {
	r.T.Helper()
	path := writeLock(r, "lock.yaml", map[string]string{copied: digest})
	text, err := os.ReadFile(path)
	if err != nil {
		r.T.Fatal(err)
	}
	relocated := strings.Replace(string(text), "kbld.carvel.dev/id: "+copied, "kbld.carvel.dev/id: "+original, 1)
	if err := os.WriteFile(path, []byte(relocated), 0o644); err != nil {
		r.T.Fatal(err)
	}
	return path
}

// TestPrivateCopy applies a lock whose image was copied to a private repository, with a credential, while the registry of its tag
// cannot be reached. Pods of the node get the tag with that credential only, also after a restart.
func TestPrivateCopy(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: strings.ReplaceAll(relocatedRules, "**/shop/**", "**/cached/**")})
	r.Reg.SetAuth(testkit.OnlyAlice(false))
	copied := r.Reg.Ref("copies/private:v1")
	digest := r.Version("copies/private:v1", "private")
	for _, original := range []string{"127.0.0.1:1/team/private:1", "127.0.0.1:1/cached/private:1"} {
		path := writeRelocated(r, original, copied, digest)
		imagepinWants(r, 0, []string{"apply", "--user", "alice:" + testkit.AlicePassword, path}, "Applied lock", original)
		for _, restart := range []bool{false, true} {
			if restart {
				r.KillAndRestart(nil)
			}
			r.Reg.Reset()
			for who, auth := range map[string]*cri.AuthConfig{"nobody": nil, "mallory": {Username: "alice", Password: "guessed"}} {
				for _, ref := range []string{original, strings.TrimSuffix(original, ":1") + "@" + digest} {
					if id, err := r.PullWith(r.Ctx, ref, node.PullOptions{Auth: auth}); err == nil {
						t.Errorf("restart %v: %s got %s of %s", restart, who, id, ref)
					}
				}
			}
			if _, err := r.PullWith(r.Ctx, original, node.PullOptions{Auth: testkit.AsAlice()}); err != nil {
				t.Errorf("restart %v: with the credential of the copy: %v", restart, err)
			}
			if r.Reg.Count() != 0 {
				t.Errorf("restart %v: the registry of the copy is asked:\n%s", restart, r.Reg.Dump())
			}
		}
	}
}

const relocatedRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/shop/**"]
pull_behavior = "prefer-cached"
locked = "strict"
`
