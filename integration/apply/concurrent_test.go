package apply

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// locks has two locks of the same images, with old and new versions.
type locks struct {
	*testkit.Rig
	ref, old, moved string // the reference, and its digests
	first, second   string // files
}

func newLocks(t *testing.T, opts node.Options) *locks {
	t.Helper()
	l := &locks{Rig: testkit.NewRig(t, opts)}
	l.ref = l.Reg.Ref("shop/app:v1")
	l.old = l.Version("shop/app:v1", "old")
	l.first = writeLock(l.Rig, "first.yaml", map[string]string{l.ref: l.old})
	l.moved = l.Version("shop/app:v1", "moved")
	l.second = writeLock(l.Rig, "second.yaml", map[string]string{l.ref: l.moved})
	return l
}

// hangOn makes requests for the manifest of a digest hang until the returned function is called.
func (l *locks) hangOn(digest string) (release func()) {
	released := make(chan struct{})
	l.Reg.SetFault(func(q registry.Request) *registry.Fault {
		if strings.Contains(q.Path, digest) {
			return &registry.Fault{Hang: released}
		}
		return nil
	})
	return sync.OnceFunc(func() { close(released) })
}

// requestFor matches requests for a digest.
func requestFor(digest string) func(registry.Request) bool {
	return func(q registry.Request) bool { return strings.Contains(q.Path, digest) }
}

// TestOneApplyAtATime starts a second apply during an apply, and a rollback and a removal that have nothing to do. They fail, pods run
// what the lock of the node names, and the first apply goes on.
func TestOneApplyAtATime(t *testing.T) {
	t.Parallel()
	l := newLocks(t, node.Options{})
	imagepinWants(l.Rig, 0, []string{"apply", l.first})
	l.WantVersion(node.KubeletPod{Image: l.ref}, "old")
	release := l.hangOn(l.moved)
	defer release()
	apply := testkit.Async(func() (string, error) { return mustApply(l.Rig, l.second) })
	testkit.AwaitRequest(t, l.Reg, requestFor(l.moved))

	for _, args := range [][]string{{"apply", l.first}, {"apply"}, {"apply", l.first, "--detach"}} {
		imagepinWants(l.Rig, 1, args, "ApplyInProgress", "imagepin apply --cancel")
	}
	for _, args := range [][]string{{"rollback"}, {"lock", "rm", "--previous"}} {
		imagepinWants(l.Rig, 1, args, "UnknownLock")
	}
	imagepinWants(l.Rig, 0, []string{"lock", "status"}, "Applying:", "preparing", l.old[7:19])
	l.WantVersion(node.KubeletPod{Image: l.ref, Always: true}, "old")
	imagepinWants(l.Rig, 0, []string{"pull", l.ref})
	release()
	if out, err := apply(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l.WantVersion(node.KubeletPod{Image: l.ref}, "moved")
}

// TestCancelApply cancels detached applies whose registry does not answer: by apply --cancel, which leaves the lock of the node, by a
// rollback, which needs no registry, and by a removal.
func TestCancelApply(t *testing.T) {
	t.Parallel()
	l := newLocks(t, node.Options{})
	imagepinWants(l.Rig, 0, []string{"apply", l.first})
	imagepinWants(l.Rig, 0, []string{"apply", l.second})
	next := l.Version("shop/app:v1", "next")
	path := writeLock(l.Rig, "next.yaml", map[string]string{l.ref: next})
	defer l.hangOn(next)()
	start := func() {
		t.Helper()
		l.Reg.Reset()
		imagepinWants(l.Rig, 0, []string{"apply", path, "--detach"}, "Started")
		testkit.AwaitRequest(t, l.Reg, requestFor(next))
	}
	start()
	imagepinWants(l.Rig, 0, []string{"apply", "--cancel"}, "Canceled the apply")
	imagepinWants(l.Rig, 10, []string{"lock", "status"}, l.moved[7:19], "ApplyCanceled")
	imagepinWants(l.Rig, 0, []string{"apply", "--cancel"}, "No lock is being applied")
	start()
	l.Reg.Reset()
	imagepinWants(l.Rig, 0, []string{"rollback"}, "Applied lock", l.old[7:19])
	if n := l.Reg.Count(requestFor(l.old)); n != 0 {
		t.Errorf("the rollback sent %d requests", n)
	}
	imagepinWants(l.Rig, 0, []string{"lock", "status"}, l.old[7:19])
	l.WantVersion(node.KubeletPod{Image: l.ref}, "old")
	start()
	imagepinWants(l.Rig, 0, []string{"lock", "rm"}, "Removed the lock")
	imagepinWants(l.Rig, 0, []string{"lock", "status"}, "none")
}

// TestStalledApply applies locks whose registry sends nothing: no manifest, no configuration, and no layer after its beginning, also
// detached. Each apply ends after image_pull_progress_timeout and leaves nothing, the node keeps its lock, and when the registry
// answers again the next apply succeeds.
func TestStalledApply(t *testing.T) {
	t.Parallel()
	l := newLocks(t, node.Options{NoPods: true, Extra: `[plugins."io.containerd.cri.v1.images"]` + "\nimage_pull_progress_timeout = \"1s\"\n"})
	imagepinWants(l.Rig, 0, []string{"apply", l.first})
	never := make(chan struct{})
	defer close(never)
	l.Collect()
	before := l.MustState()
	manifest, blob := registry.Is("GET", registry.Manifest), registry.Is("GET", registry.Blob)
	for name, c := range map[string]struct {
		when  func(registry.Request) bool
		after int64 // bytes that are sent
		args  []string
	}{
		"manifest":            {manifest, 0, nil},
		"blob":                {blob, 0, nil},
		"blob, in the middle": {blob, 60, nil},
		"detached":            {blob, 0, []string{"--detach"}},
	} {
		l.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: never, After: c.after}, c.when))
		args := append([]string{"apply", l.second}, c.args...)
		if c.args == nil {
			imagepinWants(l.Rig, 1, args, "PullStalled: ", "image_pull_progress_timeout")
		} else {
			later := l.Reg.Later()
			imagepinWants(l.Rig, 0, args, "Started")
			testkit.AwaitRequest(t, l.Reg, c.when, later) // it has begun
			l.Eventually("the detached apply has ended", func() bool {
				st, err := l.Control().LockStatus(l.Ctx, &api.LockStatusRequest{})
				return err == nil && st.GetApplying() == nil
			})
		}
		imagepinWants(l.Rig, 10, []string{"lock", "status"}, "Failed:", "PullStalled", l.old[7:19])
		if got := l.Pins(l.ref)["lock"].GetRoot().GetDigest(); got != l.old {
			t.Errorf("%s: the lock has %s, want %s", name, got, l.old)
		}
		testkit.NoLeaks(t, l.Node, before)
		l.ForgetFailedPulls()
	}
	l.Reg.SetFault(nil)
	imagepinWants(l.Rig, 0, []string{"apply", l.second}, "Applied lock", l.moved[7:19])
	imagepinWants(l.Rig, 0, []string{"lock", "status"}, "1 locked, 1 ready")
}

func mustApply(r *testkit.Rig, path string) (string, error) {
	out, code := r.Operator("apply", path)
	if code != 0 {
		return out, fmt.Errorf("exit code %d", code)
	}
	return out, nil
}

// TestApplyDuringRepair applies a bundle while the node makes an image of its lock ready again, from a registry that does not
// answer.
func TestApplyDuringRepair(t *testing.T) {
	t.Parallel()
	l := newLocks(t, node.Options{})
	bundle := makeBundle(l.Rig, "b.tar", l.second)
	imagepinWants(l.Rig, 0, []string{"apply", l.first})
	l.MustRemovePod(l.MustPod(""))
	for _, img := range l.Listed() {
		for _, name := range append(img.RepoTags, append(img.RepoDigests, img.Id)...) {
			if _, err := l.Ctr(l.Ctx, "images", "rm", "--sync", name); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.Eventually("the image is gone", func() bool { return len(l.Listed()) == 0 })
	// What is retained for the lock needs no registry.
	if err := os.Remove(l.BlobFile(testkit.MustDigest(t, l.old))); err != nil {
		t.Fatal(err)
	}
	release := l.hangOn(l.old)
	defer release()
	l.Reg.Reset()
	l.KillAndRestart(nil)
	testkit.AwaitRequest(t, l.Reg, requestFor(l.old))
	imagepinWants(l.Rig, 0, []string{"apply", bundle}, "Applied lock", l.moved[7:19])
	l.WantVersion(node.KubeletPod{Image: l.ref}, "moved")
}

// TestInterruptedApply interrupts imagepin apply at the beginning of each phase. The node keeps its lock, unless the switch was
// done, and nothing is leaked.
func TestInterruptedApply(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref := r.Reg.Ref("shop/app:v1")
	push := func(version string) string {
		seed := uint64(len(version))
		random := []images.Random{{Size: 16 << 20, Seed: seed}, {Size: 16 << 20, Seed: seed + 1}}
		_, d := r.Push("shop/app:v1", images.Options{Version: version, Random: random}, images.HostPlatform())
		return testkit.DigestIn(d)
	}
	imagepinWants(r, 0, []string{"apply", writeLock(r, "old.yaml", map[string]string{ref: push("old")})})
	bundle := makeBundle(r, "b.tar", writeLock(r, "new.yaml", map[string]string{ref: push("newer")}))
	r.MustRemovePod(r.MustPod(""))
	r.Reg.Down()
	before := r.MustState()
	for _, phase := range []string{"verifying", "importing", "preparing", "switching"} {
		if interrupt(r, phase, "apply", bundle) == 0 {
			imagepinWants(r, 0, []string{"rollback"})
			imagepinWants(r, 0, []string{"lock", "rm", "--previous"})
		}
		r.Eventually("the apply has ended", func() bool {
			st, err := r.Control().LockStatus(r.Ctx, &api.LockStatusRequest{})
			return err == nil && st.GetApplying() == nil
		})
		if st, err := r.Control().LockStatus(r.Ctx, &api.LockStatusRequest{}); err != nil || st.GetLock().GetName() == "b.tar" {
			imagepinWants(r, 0, []string{"rollback"})
			imagepinWants(r, 0, []string{"lock", "rm", "--previous"})
		}
		r.WantVersion(node.KubeletPod{Image: ref}, "old")
		if err := r.RemovePods(r.Ctx); err != nil {
			t.Fatal(err)
		}
		for id := range r.Listed() {
			if _, ok := before.Images[node.Namespace+"/"+id]; !ok {
				r.MustRemove(id, "") // it was ready
			}
		}
		var diff string
		r.Eventually("nothing is leaked after an interrupt at "+phase, func() bool {
			r.Collect()
			// The lock has been written again.
			diff = withoutLock(node.Diff(before, r.MustState()))
			if r.Ctx.Err() != nil || diff != "" {
				return false
			}
			return true
		})
		if diff != "" {
			t.Errorf("after an interrupt at %s:\n%s", phase, diff)
		}
	}
}

// withoutLock removes the lines of the record of the lock, and of its blob, from a difference.
func withoutLock(diff string) string {
	var lines []string
	for line := range strings.Lines(diff) {
		if !strings.Contains(line, " imagepin/") && !strings.Contains(line, "io.imagepin.lease=retain") && !strings.Contains(line, "io.imagepin.key.") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// interrupt runs imagepin and sends SIGINT when it reports a phase. It returns the exit code.
func interrupt(r *testkit.Rig, phase string, args ...string) int {
	r.T.Helper()
	cmd := exec.CommandContext(r.Ctx, filepath.Join(r.Options().BinDir, "imagepin"), append([]string{"--address", r.Address()}, args...)...)
	out, err := cmd.StderrPipe()
	if err != nil {
		r.T.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.T.Fatal(err)
	}
	seen := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if !seen && strings.HasPrefix(lines.Text(), phase) {
			seen = true
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				r.T.Log(err)
			}
		}
	}
	_ = cmd.Wait() // the exit code is returned
	if !seen {
		r.T.Errorf("imagepin %v did not report %s", args, phase)
	}
	return cmd.ProcessState.ExitCode()
}

// TestConcurrentApplies applies two locks, rolls back, removes the lock, pulls and removes images, all at once. Each call
// succeeds, or reports another apply or its cancellation, and at the end everything can be removed.
func TestConcurrentApplies(t *testing.T) {
	t.Parallel()
	l := newLocks(t, node.Options{NoPods: true, Handlers: testkit.OnNative})
	bundle := makeBundle(l.Rig, "b.tar", l.second)
	allowed := []string{"ApplyInProgress", "UnknownLock", "ApplyCanceled"}
	var running sync.WaitGroup
	for _, args := range [][]string{{"apply", l.first}, {"apply", bundle}, {"rollback"}, {"lock", "rm"}, {"lock", "rm", "--previous"}, {"lock", "status"}} {
		running.Go(func() {
			for range 15 {
				out, code := l.Operator(args...)
				reported := code == 1 && slices.ContainsFunc(allowed, func(reason string) bool { return strings.Contains(out, reason) })
				if code != 0 && !reported && !(args[1] == "status" && code == 10) {
					t.Errorf("imagepin %v: exit code %d: %s", args, code, out)
				}
			}
		})
	}
	for _, handler := range []string{"", testkit.Second} {
		running.Go(func() {
			for range 15 {
				id, err := l.Pull(l.Ctx, l.ref, handler)
				if err != nil {
					t.Errorf("pull for handler %q: %v", handler, err)
				}
				if err := l.RemoveImage(l.Ctx, id, ""); err != nil {
					t.Errorf("remove: %v", err)
				}
			}
		})
	}
	running.Wait()
	imagepinWants(l.Rig, 0, []string{"apply", l.first})
	imagepinWants(l.Rig, 0, []string{"lock", "status"}, "1 locked, 1 ready")
	imagepinWants(l.Rig, 0, []string{"check", "--deep"})
	imagepinWants(l.Rig, 0, []string{"lock", "rm"})
	for id := range l.Listed() {
		l.MustRemove(id, "")
	}
	l.Eventually("nothing is left", func() bool {
		l.Collect()
		return l.MustState().Empty()
	})
}

// TestContainerdRestarts restarts containerd during an apply by imagepin serve. The node has one of the locks, and applies it
// again.
func TestContainerdRestarts(t *testing.T) {
	t.Parallel()
	if node.DefaultMode() != node.Serve {
		return // imagepin is in containerd: integration/crash kills both
	}
	l := newLocks(t, node.Options{})
	imagepinWants(l.Rig, 0, []string{"apply", l.first})
	l.WantVersion(node.KubeletPod{Image: l.ref}, "old")
	release := l.hangOn(l.moved)
	defer release()
	apply := testkit.Async(func() (string, error) { return mustApply(l.Rig, l.second) })
	testkit.AwaitRequest(t, l.Reg, requestFor(l.moved))
	if err := l.EndContainerd(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := l.StartContainerd(); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitReady(l.Ctx); err != nil {
		t.Fatal(err)
	}
	release()
	out, err := apply()
	want := "old"
	if err == nil {
		want = "moved"
	}
	t.Logf("the apply: %v: %s", err, out)
	l.WantVersion(node.KubeletPod{Image: l.ref}, want)
	l.Eventually("the lock is applied", func() bool { _, err := mustApply(l.Rig, l.second); return err == nil })
	l.WantVersion(node.KubeletPod{Image: l.ref}, "moved")
}

// TestVerifiersOfLocks checks that the verifiers are called with the references and digests of a lock before anything is
// fetched or imported, and that a refusal changes nothing.
func TestVerifiersOfLocks(t *testing.T) {
	t.Parallel()
	l := newLocks(t, node.Options{Extra: dropDirectories})
	l.MustRemovePod(l.MustPod(""))
	v := testkit.NewVerifier(t, l.Node)
	bundle := makeBundle(l.Rig, "b.tar", l.second)
	imagepinWants(l.Rig, 0, []string{"apply", l.first})
	v.CheckAsked("a lock", l.ref+" "+l.old)
	before := l.MustState()
	v.Refuse(true)
	for _, path := range []string{l.second, bundle} {
		l.Reg.Reset()
		imagepinWants(l.Rig, 1, []string{"apply", path}, "ImageVerificationFailed", "nobody signed it", l.ref)
		v.CheckAsked("a refusal of "+path, l.ref+" "+l.moved)
		if n := l.Reg.Count(func(q registry.Request) bool { return q.Kind == registry.Blob }); n > 0 {
			t.Errorf("%s: %d blobs were fetched", path, n)
		}
		testkit.NoLeaks(t, l.Node, before)
	}
	imagepinWants(l.Rig, 1, []string{"apply", bundle, "--dry-run"}, "ImageVerificationFailed")
	v.CheckAsked("a dry run", l.ref+" "+l.moved)
	dropped := filepath.Join(l.Path("bundles"), "b.tar")
	if out, err := exec.Command("install", "-D", "-m", "600", bundle, dropped).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	imagepinWants(l.Rig, 1, []string{"apply"}, "ImageVerificationFailed")
	v.CheckAsked("a drop directory", l.ref+" "+l.moved)
	l.KillAndRestart(nil)
	l.Eventually("the drop directory is refused at the start", func() bool {
		st, err := l.Control().LockStatus(l.Ctx, &api.LockStatusRequest{})
		return err == nil && strings.Contains(st.GetFailed().GetError(), "ImageVerificationFailed")
	})
	testkit.NoLeaks(t, l.Node, before)
	l.WantVersion(node.KubeletPod{Image: l.ref}, "old")
	v.Refuse(false)
	imagepinWants(l.Rig, 0, []string{"apply"}, "Applied lock")
	l.WantVersion(node.KubeletPod{Image: l.ref}, "moved")
	v.Refuse(true)
	imagepinWants(l.Rig, 1, []string{"rollback"}, "ImageVerificationFailed")
	l.WantVersion(node.KubeletPod{Image: l.ref}, "moved")
	wantApply(l.Rig, &api.ApplyRequest{Path: l.first}, codes.PermissionDenied, "ImageVerificationFailed")
}
