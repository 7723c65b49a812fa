package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/checker"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// retainRules pin and retain what is below pinned/.
const retainRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/pinned/**"]
version_consistency = "node"
retain = true
`

// crashRig is a rig whose containerd dies where it is told to.
type crashRig struct {
	*rig
	fail    string // the file that says where
	check   checker.Options
	digests map[string]string // what was pushed last, by reference without the registry
}

func newCrashRig(t *testing.T, opts node.Options) *crashRig {
	t.Helper()
	c := &crashRig{fail: filepath.Join(t.TempDir(), "failpoint"), digests: map[string]string{}}
	c.check = checker.Options{Native: images.HostPlatform(), DiscardedLayers: opts.DiscardUnpackedLayers, Pods: !opts.NoPods}
	if opts.Binary == "" {
		opts.Binary = "containerd-failpoints"
	}
	opts.Env = append(opts.Env, "IMAGEPIN_FAILPOINT=@"+c.fail)
	opts.Extra += retainRules
	opts.Handlers = append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...)
	c.rig = newRig(t, opts)
	return c
}

// arm makes containerd die at a failpoint: "name", "name:2" for the second time it is reached, "*:7" for the seventh failpoint of all.
func (c *crashRig) arm(spec string) {
	c.t.Helper()
	c.disarm()
	// In one step, or it is read half written.
	if err := os.WriteFile(c.fail+".new", []byte(spec), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(c.fail+".new", c.fail); err != nil {
		c.t.Fatal(err)
	}
}

func (c *crashRig) disarm() {
	c.t.Helper()
	for _, f := range []string{c.fail, c.fail + ".died", c.fail + ".trace"} {
		if err := os.Remove(f); err != nil && !os.IsNotExist(err) {
			c.t.Fatal(err)
		}
	}
}

// died gives the failpoint at which containerd died, or nothing.
func (c *crashRig) died() string {
	b, _ := os.ReadFile(c.fail + ".died")
	return strings.TrimSpace(string(b))
}

// reached counts the failpoints that were reached since they were last armed or disarmed.
func (c *crashRig) reached() (names []string, times map[string]int) {
	b, _ := os.ReadFile(c.fail + ".trace")
	times = map[string]int{}
	for _, name := range strings.Fields(string(b)) {
		if times[name]++; times[name] == 1 {
			names = append(names, name)
		}
	}
	return names, times
}

// revive starts containerd after it died.
func (c *crashRig) revive() {
	c.t.Helper()
	if err := c.Crash(); err != nil {
		c.t.Fatal(err)
	}
	c.disarm()
	if err := c.Start(c.ctx); err != nil {
		c.t.Fatal(err)
	}
}

// sound waits until nothing is wrong with the node: what heals does so behind the service.
func (c *crashRig) sound(when string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last []string
	for {
		problems, err := checker.Check(ctx, c.Node, c.check)
		if err == nil && len(problems) == 0 {
			return
		}
		if ctx.Err() == nil {
			last = append(problems, fmt.Sprint(err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("%s this is wrong with the node:\n%s", when, strings.Join(last, "\n"))
		}
	}
}

// purge removes everything that can be removed, and fails the test where something is left.
func (c *crashRig) purge(when string) {
	c.t.Helper()
	if c.check.Pods {
		if err := c.RemovePods(c.ctx); err != nil {
			c.t.Fatal(err)
		}
	}
	all, err := c.ListImages(c.ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, img := range all {
		c.remove(img.Id, "")
	}
	for name := range c.state().Images {
		scope, ref, _ := strings.Cut(strings.TrimPrefix(name, "imagepin/"), "/")
		if !strings.HasPrefix(name, "imagepin/") {
			continue
		}
		if err := c.command("pin", "rm", "--scope", scope, ref); err != nil {
			c.t.Fatal(err)
		}
	}
	c.eventually("nothing is left "+when, func() bool {
		c.collect()
		s := c.state()
		return s.Empty() || c.lastLook(s)
	})
}

// lastLook says what is left, for a test that waits in vain.
func (c *crashRig) lastLook(s *node.State) bool {
	if c.ctx.Err() != nil {
		c.t.Logf("left:\n%s", strings.Join(s.Lines(), "\n"))
	}
	return false
}

// command runs the imagepin command.
func (c *crashRig) command(args ...string) error {
	_, err := c.commandIn(c.ctx, args...)
	return err
}

func (c *crashRig) commandIn(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Options().BinDir, "imagepin"), append([]string{"--address", c.Address()}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("imagepin %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// refreshed is the error of a refresh. The command tells by its status that something has changed.
func (c *crashRig) refreshed(ref string) error {
	out, err := c.commandIn(c.ctx, "refresh", ref)
	if err != nil && strings.Contains(out, "changed") {
		return nil
	}
	return err
}

// data pushes an image of next to nothing for both platforms, and returns its reference.
func (c *crashRig) data(ref, version string) string {
	c.t.Helper()
	c.digests[ref] = testkit.Push(c.t, c.reg, ref, c.version(version)).String()
	return c.reg.Ref(ref)
}

// version builds an image of two layers, of which all versions share one.
func (c *crashRig) version(version string) v1.ImageIndex {
	c.t.Helper()
	idx, err := images.DataIndex(images.Options{Files: []images.Files{{"/base": []byte("base")}, {"/version": []byte(version)}}}, images.HostPlatform(), foreign)
	if err != nil {
		c.t.Fatal(err)
	}
	return idx
}

// pulled is the error of a pull.
func (c *crashRig) pulled(ref, handler string) error {
	_, err := c.Pull(c.ctx, ref, handler)
	return err
}

// until waits for a status; that containerd is gone ends the wait.
func (c *crashRig) until(ref, handler string, present bool) error {
	ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		img, err := c.ImageStatus(ctx, ref, handler)
		if err != nil || (img != nil) == present {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s for %q: %v", ref, handler, img)
		}
	}
}

// scenario is something that is killed at each failpoint it reaches.
type scenario struct {
	options node.Options
	// setup brings about where it begins, on a node that has nothing.
	setup func(*crashRig)
	// op is killed, and later done again.
	op func(*crashRig) error
	// after removes what another tool has left that was killed with it.
	after func(*crashRig)
}

// anywhere are the handlers of all targets.
var anywhere = []string{"", second, "foreign"}

func (c *crashRig) pullEverywhere(ref string) {
	c.t.Helper()
	for _, h := range anywhere {
		c.pull(ref, h)
	}
}

var crashScenarios = map[string]scenario{
	"pull": {
		setup: func(c *crashRig) { c.data("app:1", "1") },
		op:    func(c *crashRig) error { return c.pulled(c.reg.Ref("app:1"), "") },
	},
	"pull of another platform": {
		setup: func(c *crashRig) { c.data("app:1", "1") },
		op:    func(c *crashRig) error { return c.pulled(c.reg.Ref("app:1"), "foreign") },
	},
	"pull for a second snapshotter": {
		options: node.Options{DiscardUnpackedLayers: true},
		setup:   func(c *crashRig) { c.pull(c.data("app:1", "1"), "") },
		op:      func(c *crashRig) error { return c.pulled(c.reg.Ref("app:1"), second) },
	},
	"pull of a tag that has moved": {
		setup: func(c *crashRig) {
			c.pull(c.data("app:1", "1"), "")
			c.data("app:1", "2")
		},
		op: func(c *crashRig) error { return c.pulled(c.reg.Ref("app:1"), "") },
	},
	"remove": {
		setup: func(c *crashRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op:    func(c *crashRig) error { return c.RemoveImage(c.ctx, c.reg.Ref("app:1"), "") },
	},
	"remove for one handler": {
		setup: func(c *crashRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op:    func(c *crashRig) error { return c.RemoveImage(c.ctx, c.reg.Ref("app:1"), second) },
	},
	"pull that pins and retains": {
		options: node.Options{DiscardUnpackedLayers: true},
		setup:   func(c *crashRig) { c.data("pinned/app:1", "1") },
		op:      func(c *crashRig) error { return c.pulled(c.reg.Ref("pinned/app:1"), "") },
	},
	"pin set": {
		setup: func(c *crashRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op: func(c *crashRig) error {
			repo, digest, _ := strings.Cut(c.pushedDigest("app:1"), "@")
			return c.command("pin", "set", "--retain", repo+":1", digest)
		},
	},
	"pin rm": {
		setup: func(c *crashRig) { c.pullEverywhere(c.data("pinned/app:1", "1")) },
		op: func(c *crashRig) error {
			err := c.command("pin", "rm", c.reg.Ref("pinned/app:1"))
			if err != nil && strings.Contains(err.Error(), "UnknownPin") {
				return nil // that is what is wanted
			}
			return err
		},
	},
	"refresh": {
		setup: func(c *crashRig) {
			ref := c.data("pinned/app:1", "1")
			c.pull(ref, "")
			c.pull(ref, second)
			c.data("pinned/app:1", "2")
		},
		op: func(c *crashRig) error { return c.refreshed(c.reg.Ref("pinned/app:1")) },
	},
	"adoption": {
		setup: func(c *crashRig) {
			ref := c.data("app:1", "1")
			c.pull(ref, "")
			c.ctr("images", "export", "--platform", images.HostPlatform(), c.Path("app.tar"), ref)
			c.remove(ref, "")
		},
		op: func(c *crashRig) error {
			if _, err := c.Ctr(c.ctx, "images", "import", c.Path("app.tar")); err != nil {
				return err
			}
			return c.until(c.reg.Ref("app:1"), "runc", true)
		},
		after: (*crashRig).dropForeignLeases,
	},
	"adoption of one more name": {
		setup: func(c *crashRig) { c.pull(c.data("app:1", "1"), "") },
		op: func(c *crashRig) error {
			if _, err := c.Ctr(c.ctx, "images", "tag", "--force", c.reg.Ref("app:1"), c.reg.Ref("app:named")); err != nil {
				return err
			}
			return c.until(c.reg.Ref("app:named"), "runc", true)
		},
		after: (*crashRig).dropForeignLeases,
	},
	"tag removed by another tool": {
		setup: func(c *crashRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op:    func(c *crashRig) error { return c.removedByCtr(c.reg.Ref("app:1")) },
	},
	"digest removed by another tool": {
		setup: func(c *crashRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op:    func(c *crashRig) error { return c.removedByCtr(c.pushedDigest("app:1")) },
	},
	"start after a killed pull": {
		setup: func(c *crashRig) {
			ref := c.data("app:1", "1")
			c.killed("pull.unpacked", func() error { return c.pulled(ref, "") })
			for _, purpose := range []string{"use", "collect"} {
				if _, err := c.Client().LeasesService().Create(nsctx(c.ctx), leases.WithRandomID(), leases.WithLabel("io.imagepin.lease", purpose)); err != nil {
					c.t.Fatal(err)
				}
			}
		},
		op: func(c *crashRig) error { return c.Restart(c.ctx, nil) },
	},
	"start after a killed removal": {
		setup: func(c *crashRig) {
			c.pullEverywhere(c.data("app:1", "1"))
			c.arm("remove.release")
			if err := c.RemoveImage(c.ctx, c.reg.Ref("app:1"), second); err == nil {
				c.t.Fatal("the removal was not killed")
			}
		},
		op: (*crashRig).again,
	},
	"start with a label astray": {
		setup: func(c *crashRig) {
			ref := c.data("app:1", "1")
			c.pull(ref, "")
			c.pull(c.data("app:2", "2"), "")
			c.copyKeys(c.pushedDigest("app:1"), c.pushedDigest("app:2"))
		},
		op: (*crashRig).again,
	},
	"healing": {
		setup: func(c *crashRig) { c.pull(c.data("app:1", "1"), "") },
		op: func(c *crashRig) error {
			if err := c.loseSnapshots(); err != nil {
				return err
			}
			return c.until(c.reg.Ref("app:1"), "runc", true)
		},
	},
	"dropping what cannot be healed": {
		options: node.Options{DiscardUnpackedLayers: true},
		setup: func(c *crashRig) {
			c.pull(c.data("app:1", "1"), "")
			c.collect() // or there are layers to unpack
		},
		op: func(c *crashRig) error {
			if err := c.loseSnapshots(); err != nil {
				return err
			}
			return c.until(c.reg.Ref("app:1"), "runc", false)
		},
	},
	"RunPodSandbox": {
		setup: func(*crashRig) {},
		op: func(c *crashRig) error {
			_, err := c.RunPod(c.ctx, node.PodOptions{Handler: second})
			return err
		},
	},
}

// again ends containerd, however it is, and starts it.
func (c *crashRig) again() error {
	if err := c.Kill9(); err != nil {
		return err
	}
	return c.Start(c.ctx)
}

// killed has containerd killed in a call, and starts it again.
func (c *crashRig) killed(at string, call func() error) {
	c.t.Helper()
	c.arm(at)
	err := call()
	if got := c.died(); got != at {
		c.t.Fatalf("containerd died at %q, not %q: %v", got, at, err)
	}
	c.revive()
}

func (c *crashRig) ctr(args ...string) {
	c.t.Helper()
	if _, err := c.Ctr(c.ctx, args...); err != nil {
		c.t.Fatal(err)
	}
}

// pushedDigest is the reference by digest of what was pushed last under a tag.
func (c *crashRig) pushedDigest(ref string) string {
	repo, _, _ := strings.Cut(ref, ":")
	return c.reg.Ref(repo + "@" + c.digests[ref])
}

// dropForeignLeases deletes the leases that ctr could not delete: containerd died before it was done.
func (c *crashRig) dropForeignLeases() {
	c.t.Helper()
	manager := c.Client().LeasesService()
	all, err := manager.List(nsctx(c.ctx))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range all {
		if l.Labels["io.imagepin.lease"] != "" {
			continue
		}
		if err := manager.Delete(nsctx(c.ctx), l); err != nil {
			c.t.Fatal(err)
		}
	}
}

// removedByCtr removes a record, unless it is gone, and waits until the index has noticed.
func (c *crashRig) removedByCtr(name string) error {
	if _, err := c.Ctr(c.ctx, "images", "rm", name); err != nil {
		return err
	}
	return c.until(name, "runc", false)
}

// copyKeys copies the keys of one record to another.
func (c *crashRig) copyKeys(from, to string) {
	c.t.Helper()
	store := c.Client().ImageService()
	img, err := store.Get(nsctx(c.ctx), from)
	if err != nil {
		c.t.Fatal(err)
	}
	var fields []string
	add := ctdimages.Image{Name: to, Labels: map[string]string{}}
	for label, value := range img.Labels {
		if strings.HasPrefix(label, "io.imagepin.key.") {
			add.Labels[label] = value
			fields = append(fields, "labels."+label)
		}
	}
	if _, err := store.Update(nsctx(c.ctx), add, fields...); err != nil {
		c.t.Fatal(err)
	}
}

// loseSnapshots removes every snapshot of the default snapshotter that is there.
func (c *crashRig) loseSnapshots() error {
	ctx, sn := nsctx(c.ctx), c.Client().SnapshotService("overlayfs")
	for {
		var names, parents []string
		if err := sn.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			names, parents = append(names, i.Name), append(parents, i.Parent)
			return nil
		}); err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if slices.Contains(parents, name) {
				continue
			}
			// Healing goes on beside it, and what that leaves is collected.
			if err := sn.Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
	}
}

// TestFailpoints kills containerd at every failpoint, in all operations that reach it. What a start makes of it is sound; the operation can be done
// again; and in the end everything can be removed, and nothing is left.
func TestFailpoints(t *testing.T) {
	t.Parallel()
	var (
		mu      sync.Mutex
		covered = map[string]bool{}
	)
	t.Run("scenarios", func(t *testing.T) {
		for name, s := range crashScenarios {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s.options.NoPods = name != "RunPodSandbox"
				c := newCrashRig(t, s.options)
				s.setup(c)
				c.disarm()
				if err := s.op(c); err != nil {
					t.Fatal(err)
				}
				c.sound("after the operation")
				names, times := c.reached()
				c.purge("after the operation")
				for _, at := range names {
					for n := range times[at] {
						if c.dies(s, fmt.Sprintf("%s:%d", at, n+1)) {
							mu.Lock()
							covered[at] = true
							mu.Unlock()
						} else if n == 0 {
							t.Errorf("%s was reached, but not again", at)
						}
					}
				}
			})
		}
	})
	for _, name := range failpointNames(t) {
		if !covered[name] && !(node.DefaultMode() == node.Serve && slices.Contains(inTransaction, name)) {
			t.Errorf("containerd was never killed at %s", name)
		}
	}
}

// inTransaction are the failpoints around a transaction, which there is none of over containerd's socket.
var inTransaction = []string{"store.committed", "store.notified"}

// end waits for containerd's end, a little.
func (c *crashRig) end() {
	ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second)
	defer cancel()
	_ = c.Wait(ctx) // whether it has ended is told by the failpoint
}

// dies kills containerd at a failpoint of a scenario and looks at what is left. It tells whether the failpoint was reached.
func (c *crashRig) dies(s scenario, at string) bool {
	c.t.Helper()
	s.setup(c)
	c.arm(at)
	err := s.op(c)
	if err == nil {
		c.end() // some of it goes on behind the service
	}
	died := c.died() != ""
	if !died && err != nil {
		c.t.Fatalf("%s: %v", at, err)
	}
	c.revive()
	if s.after != nil {
		s.after(c)
	}
	c.sound("killed at " + at)
	if err := s.op(c); err != nil {
		c.t.Fatalf("again after it was killed at %s: %v", at, err)
	}
	c.sound("again after it was killed at " + at)
	c.purge("after it was killed at " + at)
	return died
}

var failpointName = regexp.MustCompile(`(?m)^\t"([a-z]+\.[a-z]+)",`)

// failpointNames reads the list in package failpoint, which a test of its own compares with the sources.
func failpointNames(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../internal/failpoint/failpoint.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range failpointName.FindAllStringSubmatch(string(b), -1) {
		names = append(names, m[1])
	}
	if len(names) < 30 {
		t.Fatalf("failpoints %q", names)
	}
	return names
}

// crashRounds is how often TestRandomKills kills.
func crashRounds(t *testing.T) int {
	t.Helper()
	s := os.Getenv("IMAGEPIN_CRASH_ROUNDS")
	if s == "" {
		return 200
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("IMAGEPIN_CRASH_ROUNDS: %v", err)
	}
	return n
}

// TestRandomKills kills containerd while it pulls, removes and refreshes: at the n-th failpoint, or when it publishes the n-th event, which
// comes from between the failpoints. After each start everything is sound, and now and then all is removed and nothing is left.
//
// IMAGEPIN_CRASH_SEED repeats the choices of an earlier run.
func TestRandomKills(t *testing.T) {
	t.Parallel()
	rounds, seed := crashRounds(t), uint64(time.Now().UnixNano())
	if s := os.Getenv("IMAGEPIN_CRASH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("IMAGEPIN_CRASH_SEED: %v", err)
		}
	}
	const nodes = 2
	for i := range nodes {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			t.Logf("IMAGEPIN_CRASH_SEED=%d", seed)
			r := &randomKills{
				crashRig: newCrashRig(t, node.Options{NoPods: true, DiscardUnpackedLayers: i%2 == 1}),
				Rand:     rand.New(rand.NewPCG(seed, uint64(i))),
			}
			for range rounds / nodes {
				r.round()
			}
			r.purge("in the end")
			t.Logf("%d rounds, %d killed, at %v", r.rounds, r.kills, r.at)
		})
	}
}

type randomKills struct {
	*crashRig
	*rand.Rand
	rounds, kills int
	at            map[string]int
}

var crashRepos = []string{"app", "web", "pinned/app"}

// round does a few things at once until containerd is killed.
func (r *randomKills) round() {
	r.t.Helper()
	if r.at == nil {
		r.at = map[string]int{}
	}
	r.rounds++
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	var ops []func() error
	for range 1 + r.IntN(3) {
		ops = append(ops, r.operation(ctx))
	}
	killed := func() {}
	if how := r.IntN(2); how == 0 {
		r.arm(fmt.Sprintf("*:%d", 1+r.IntN(25)))
	} else {
		killed = r.killAtEvent(ctx, 1+r.IntN(12))
	}
	var running sync.WaitGroup
	for _, op := range ops {
		running.Go(func() { _ = op() }) // most fail: containerd dies
	}
	running.Wait()
	cancel()
	killed()
	if at := r.died(); at != "" {
		r.kills++
		r.at[at]++
	}
	what := fmt.Sprintf("in round %d, killed at %q", r.rounds, r.died())
	r.revive()
	r.sound(what)
	if r.rounds%10 == 0 {
		r.purge(what)
	}
}

// operation is one thing to do, chosen at random.
func (r *randomKills) operation(ctx context.Context) func() error {
	r.t.Helper()
	repo := crashRepos[r.IntN(len(crashRepos))]
	ref := r.reg.Ref(repo + ":1")
	handler := anywhere[r.IntN(len(anywhere))]
	switch r.IntN(6) {
	case 0:
		return func() error { return r.RemoveImage(ctx, ref, "") }
	case 1:
		return func() error { return r.RemoveImage(ctx, ref, handler) }
	case 2:
		r.data(repo+":1", strconv.Itoa(r.IntN(3)))
		return func() error { return r.refreshed(ref) }
	default:
		r.data(repo+":1", strconv.Itoa(r.IntN(3)))
		return func() error { _, err := r.Pull(ctx, ref, handler); return err }
	}
}

// killAtEvent kills containerd when it publishes its n-th event. The returned function waits for that, or until the context ends.
func (r *randomKills) killAtEvent(ctx context.Context, n int) func() {
	r.t.Helper()
	ch, errs := r.Client().EventService().Subscribe(ctx)
	pid := r.PID()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range n {
			select {
			case <-ch:
			case <-errs:
				return
			}
		}
		p, err := os.FindProcess(pid)
		if err == nil && p.Kill() == nil {
			r.kills++
			r.at["event"]++
		}
	}()
	return func() { <-done }
}
