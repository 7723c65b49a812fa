package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// applyRounds returns how often TestApplyKills kills at each failpoint, and at random times.
func applyRounds(t *testing.T) int {
	t.Helper()
	s := os.Getenv("IMAGEPIN_APPLY_KILLS")
	if s == "" {
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("IMAGEPIN_APPLY_KILLS: %v", err)
	}
	return n
}

// applyKills is a node that has no registry. It has the lock "old" of three images, and applies the bundle "new".
type applyKills struct {
	*killRig
	digests map[string]string // of locks, by name
	rounds  int
	drops   int
	ended   map[string]int // number of kills that left each lock
}

// TestApplyKills kills containerd at each failpoint of an apply, and at random times. After a restart, the pods of all
// images of the lock run the old versions, or all run the new ones, as imagepin lock status says. The next apply, or the next
// start with a drop directory, completes the new lock, and nothing is leaked.
func TestApplyKills(t *testing.T) {
	t.Parallel()
	for _, dropped := range []bool{false, true} {
		name := "command"
		if dropped {
			name = "drop directory"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newApplyKills(t)
			points := []string{
				"lease.created", "apply.kept", "apply.imported", "apply.made", "apply.made:3", "apply.ready", "lock.stored", "lock.switched",
				"apply.tagged", "apply.tagged:3",
			}
			for range applyRounds(t) {
				for _, at := range points {
					a.killed(at, dropped)
				}
				a.killed("", dropped)
			}
			t.Logf("%d kills, which left the locks %v", a.rounds, a.ended)
			if a.ended["old"] == 0 || a.ended["new"] == 0 {
				t.Errorf("the kills left only one of the locks")
			}
		})
	}
}

func newApplyKills(t *testing.T) *applyKills {
	t.Helper()
	a := &applyKills{killRig: newKillRig(t, "native", node.Options{Extra: `
[plugins."io.containerd.imagepin.v1.images"]
bundles_directory = "{root}/bundles"
`}), digests: map[string]string{}, ended: map[string]int{}}
	if err := os.Mkdir(a.Path("bundles"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"old", "new"} {
		var refs []string
		for _, repo := range locked {
			_, d := a.Push(repo+":1", images.Options{Version: repo + " " + version}, images.HostPlatform(), testkit.Foreign)
			a.killRig.digests[repo+":1"] = testkit.DigestIn(d)
			refs = append(refs, a.Reg.Ref(repo+":1"))
		}
		lock := a.Path(version + ".lock.yaml")
		if err := os.WriteFile(lock, []byte(a.lockText(refs)), 0o600); err != nil {
			t.Fatal(err)
		}
		a.must("bundle", lock, "-o", a.Path(version+".tar.zst"))
	}
	for _, handler := range allHandlers {
		a.MustRemovePod(a.MustPod(handler)) // the sandbox image
	}
	a.Reg.Down()
	for _, version := range []string{"new", "old"} {
		a.must("apply", a.Path(version+".tar.zst"))
		a.digests[a.current()] = version
	}
	return a
}

func (a *applyKills) must(args ...string) {
	a.T.Helper()
	if err := a.command(args...); err != nil {
		a.T.Fatal(err)
	}
}

func (a *applyKills) status() *api.LockStatusResponse {
	a.T.Helper()
	s, err := a.Control().LockStatus(a.Ctx, &api.LockStatusRequest{})
	if err != nil {
		a.T.Fatal(err)
	}
	return s
}

func (a *applyKills) current() string { return a.status().GetLock().GetDigest() }

// killed kills containerd at a failpoint of an apply of the new lock, or at a random time if at is empty, and checks the node.
func (a *applyKills) killed(at string, dropped bool) {
	a.T.Helper()
	a.rounds++
	a.reset()
	apply := func() error { return a.command("apply", a.Path("new.tar.zst")) }
	if dropped {
		apply = a.startWithDropped
	}
	switch {
	case at == "" && !dropped:
		at = a.killAtRandom(apply)
	case at == "":
		at = fmt.Sprintf("*:%d", 1+rand.IntN(100))
		a.arm(at)
		_ = apply() // it fails if it is killed
		a.awaitEnd()
	default:
		a.arm(at)
		_ = apply() // it fails if it is killed
		testkit.EventuallyIn(a.T, 30*time.Second, "containerd reaches "+at, func(context.Context) (bool, error) { return a.diedAt() != "", nil })
		a.awaitEnd()
	}
	if dropped {
		a.hideDropped(true)
	}
	a.revive()
	left := a.digests[a.current()]
	a.ended[left]++
	a.wantAll(left, at)
	if dropped {
		a.hideDropped(false)
		a.revive()
		a.Eventually("the drop directory is applied after a kill at "+at, func() bool { return a.digests[a.current()] == "new" })
	} else if err := apply(); err != nil {
		a.T.Fatalf("applying again after a kill at %s: %v", at, err)
	}
	a.wantAll("new", at)
	a.wantConsistent("after a kill at " + at)
}

// reset makes the old lock the only one, and removes the new images.
func (a *applyKills) reset() {
	a.T.Helper()
	if err := errors.Join(os.RemoveAll(a.dropped()), os.RemoveAll(a.hidden())); err != nil {
		a.T.Fatal(err)
	}
	a.drops++
	if err := a.RemovePods(a.Ctx); err != nil {
		a.T.Fatal(err)
	}
	a.must("lock", "rm")
	for _, img := range a.Listed() {
		a.MustRemove(img.Id, "")
	}
	a.must("apply", a.Path("old.tar.zst"))
	a.wantConsistent("with the old lock only")
}

// dropped returns the path of the bundle in the drop directory. Each one has another name, because what was applied last from the
// drop directory is not applied again.
func (a *applyKills) dropped() string {
	return a.Path("bundles", fmt.Sprintf("new%d.tar.zst", a.drops))
}

// hidden returns the path of the bundle that a start does not apply.
func (a *applyKills) hidden() string {
	return a.Path("bundles", fmt.Sprintf(".new%d.tar.zst", a.drops))
}

// startWithDropped puts the new bundle into the drop directory and restarts the node. It returns when the lock is applied or
// containerd has ended.
func (a *applyKills) startWithDropped() error {
	text, err := os.ReadFile(a.Path("new.tar.zst"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(a.dropped(), text, 0o600); err != nil {
		return err
	}
	if err := a.Kill9(); err != nil {
		return err
	}
	return a.Start(a.Ctx)
}

// hideDropped hides the bundle in the drop directory, so that a start does not apply it.
func (a *applyKills) hideDropped(hide bool) {
	a.T.Helper()
	from, to := a.dropped(), a.hidden()
	if !hide {
		from, to = to, from
	}
	if err := os.Rename(from, to); err != nil {
		a.T.Fatal(err)
	}
}

// killAtRandom kills containerd at a random time of an apply, and returns when that was.
func (a *applyKills) killAtRandom(apply func() error) string {
	a.T.Helper()
	a.disarm()
	after := time.Duration(rand.Int64N(int64(3 * time.Second)))
	p, err := os.FindProcess(a.PID())
	if err != nil {
		a.T.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = p.Kill() })
	defer timer.Stop()
	_ = apply() // it fails if it is killed
	return after.String()
}

// wantAll fails the test unless the lock is ready and pods of all its images run a version.
func (a *applyKills) wantAll(version, at string) {
	a.T.Helper()
	a.Eventually(fmt.Sprintf("all images of the %s lock are ready after a kill at %s", version, at), func() bool {
		s := a.status()
		c := s.GetCounts()
		return a.digests[s.GetLock().GetDigest()] == version && c.GetLocked() == int64(len(locked)) && c.GetReady() == c.GetLocked() && c.GetMissing() == 0
	})
	for _, repo := range locked {
		a.WantVersion(node.KubeletPod{Image: a.Reg.Ref(repo + ":1")}, repo+" "+version)
	}
}
