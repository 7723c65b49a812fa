package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/checker"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// killRig is a rig whose containerd dies at a chosen failpoint.
type killRig struct {
	*testkit.Rig
	fail    string // the file that names the failpoint
	check   checker.Options
	digests map[string]string // digests of the last pushes, by "repo:tag"
}

func newKillRig(t *testing.T, second string, opts node.Options) *killRig {
	t.Helper()
	c := &killRig{fail: filepath.Join(t.TempDir(), "failpoint"), digests: map[string]string{}}
	c.check = checker.Options{Native: images.HostPlatform(), DiscardedLayers: opts.DiscardUnpackedLayers, Pods: !opts.NoPods}
	if opts.Binary == "" {
		opts.Binary = "containerd-failpoints"
	}
	opts.Env = append(opts.Env, "IMAGEPIN_FAILPOINT=@"+c.fail)
	opts.Extra += testkit.RetainRules
	opts.Handlers = []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}
	c.Rig = testkit.NewRig(t, testkit.WithSecond(second, opts))
	return c
}

// awaitCollected waits until the first start since the boot has collected garbage, which it does in the background.
// Otherwise, an operation could reach the failpoints of that start. The binary must have failpoints.
func (c *killRig) awaitCollected() {
	c.T.Helper()
	c.Eventually("the first start has collected garbage", func() bool {
		_, times := c.reached()
		return times["start.collected"] > 0
	})
}

// arm makes containerd die at a failpoint: "name", "name:2" for the second time that it is reached, or "*:7" for the
// seventh failpoint of any name.
func (c *killRig) arm(spec string) {
	c.T.Helper()
	c.disarm()
	// Rename the file, so that it is never read half written.
	if err := os.WriteFile(c.fail+".new", []byte(spec), 0o600); err != nil {
		c.T.Fatal(err)
	}
	if err := os.Rename(c.fail+".new", c.fail); err != nil {
		c.T.Fatal(err)
	}
}

func (c *killRig) disarm() {
	c.T.Helper()
	for _, f := range []string{c.fail, c.fail + ".died", c.fail + ".trace"} {
		if err := os.Remove(f); err != nil && !os.IsNotExist(err) {
			c.T.Fatal(err)
		}
	}
}

// diedAt returns the failpoint at which containerd died, or "".
func (c *killRig) diedAt() string {
	b, _ := os.ReadFile(c.fail + ".died")
	return strings.TrimSpace(string(b))
}

// reached returns the failpoints that were reached since the last arm or disarm, in order, and how often each was.
func (c *killRig) reached() (names []string, times map[string]int) {
	b, _ := os.ReadFile(c.fail + ".trace")
	times = map[string]int{}
	for _, name := range strings.Fields(string(b)) {
		if times[name]++; times[name] == 1 {
			names = append(names, name)
		}
	}
	return names, times
}

// revive starts containerd again. It first kills it if it has not died.
func (c *killRig) revive() {
	c.T.Helper()
	if err := c.Crash(); err != nil {
		c.T.Fatal(err)
	}
	c.disarm()
	if err := c.Start(c.Ctx); err != nil {
		c.T.Fatal(err)
	}
	if c.check.Pods {
		c.prepareSnapshots()
	}
}

// prepareSnapshots prepares a snapshot in each snapshotter, which can fail once: containerd's snapshotters rename the directory of a
// snapshot before they commit its record. After a kill in between, the next snapshot has the same number, fails, and removes the
// directory. imagepin unpacks again after this failure. A pod fails, as with stock containerd, and kubelet starts it again.
func (c *killRig) prepareSnapshots() {
	c.T.Helper()
	all, err := c.Snapshotters(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	ctx := testkit.NSContext(c.Ctx)
	for _, name := range all {
		sn := c.Client().SnapshotService(name)
		_, err := sn.Prepare(ctx, c.T.Name(), "")
		if err == nil {
			err = sn.Remove(ctx, c.T.Name())
		} else if strings.Contains(err.Error(), "file exists") {
			err = nil
		}
		if err != nil && !errdefs.IsNotFound(err) { // nothing held it
			c.T.Fatalf("a snapshot of %s: %v", name, err)
		}
	}
}

// wantConsistent fails the test unless the checker soon finds no problems. Repairs run in the background.
func (c *killRig) wantConsistent(when string) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.Ctx, 15*time.Second)
	defer cancel()
	var last []string
	for {
		start := time.Now()
		problems, err := checker.Check(ctx, c.Node, c.check)
		if err == nil && len(problems) == 0 {
			return
		}
		if ctx.Err() == nil {
			last = append(problems, fmt.Sprint(err))
		}
		select {
		case <-time.After(max(20*time.Millisecond, 2*time.Since(start))):
		case <-ctx.Done():
			c.T.Fatalf("%s: the node has problems:\n%s\non the node:\n%s", when, strings.Join(last, "\n"), strings.Join(c.MustState().Lines(), "\n"))
		}
	}
}

// removeAll removes all pods, images and pins, and what killed pulls have fetched, and fails the test if something is left.
func (c *killRig) removeAll(when string) {
	c.T.Helper()
	if c.check.Pods {
		if err := c.RemovePods(c.Ctx); err != nil {
			c.T.Fatal(err)
		}
	}
	all, err := c.ListImages(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	for _, img := range all {
		c.MustRemove(img.Id, "")
	}
	for name := range c.MustState().Images {
		if name == "imagepin/lock" {
			if err := c.command("lock", "rm"); err != nil {
				c.T.Fatal(err)
			}
			continue
		}
		scope, ref, _ := strings.Cut(strings.TrimPrefix(name, "imagepin/"), "/")
		if !strings.HasPrefix(name, "imagepin/") {
			continue
		}
		if err := c.command("pin", "rm", "--scope", scope, ref); err != nil {
			c.T.Fatal(err)
		}
	}
	if len(c.MustState().Resumed()) > 0 { // what a killed pull has fetched
		if err := c.command("prune", "--yes"); err != nil {
			c.T.Fatal(err)
		}
	}
	c.Eventually("nothing is left "+when, func() bool {
		c.Collect()
		s := c.MustState()
		return s.Empty() || c.logLeft(s)
	})
}

// logLeft logs what is left if the test runs out of time. It returns false.
func (c *killRig) logLeft(s *node.State) bool {
	if c.Ctx.Err() != nil {
		c.T.Logf("left on the node:\n%s", strings.Join(s.Lines(), "\n"))
	}
	return false
}

// command runs the imagepin command.
func (c *killRig) command(args ...string) error {
	_, err := c.commandIn(c.Ctx, args...)
	return err
}

func (c *killRig) commandIn(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Options().BinDir, "imagepin"), append([]string{"--address", c.Address()}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("imagepin %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// refresh runs imagepin refresh. Exit code 10 reports a change, and is not an error.
func (c *killRig) refresh(ref string) error {
	_, err := c.commandIn(c.Ctx, "refresh", ref)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 10 {
		return nil
	}
	return err
}

// pushData pushes a small image for both platforms and returns its reference.
func (c *killRig) pushData(ref, version string) string {
	c.T.Helper()
	c.digests[ref] = testkit.Push(c.T, c.Reg, ref, c.dataIndex(version)).String()
	return c.Reg.Ref(ref)
}

// dataIndex builds an image of two layers. All versions share the first layer.
func (c *killRig) dataIndex(version string) v1.ImageIndex {
	c.T.Helper()
	idx, err := images.DataIndex(images.Options{Files: []images.Files{{"/base": []byte("base")}, {"/version": []byte(version)}}}, images.HostPlatform(), testkit.Foreign)
	if err != nil {
		c.T.Fatal(err)
	}
	return idx
}

// pull pulls an image.
func (c *killRig) pull(ref, handler string) error {
	_, err := c.Pull(c.Ctx, ref, handler)
	return err
}

// awaitStatus waits until an image is present, or not. It returns an error if containerd ends.
func (c *killRig) awaitStatus(ref, handler string, present bool) error {
	ctx, cancel := context.WithTimeout(c.Ctx, 10*time.Second)
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
			return fmt.Errorf("ImageStatus %s for handler %q returns %v, want present: %t", ref, handler, img, present)
		}
	}
}
