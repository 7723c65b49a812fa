package crash

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/checker"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// killRig is a rig whose containerd dies where it is told to.
type killRig struct {
	*testkit.Rig
	fail    string // the file that says where
	check   checker.Options
	digests map[string]string // what was pushed last, by reference without the registry
}

func newKillRig(t *testing.T, opts node.Options) *killRig {
	t.Helper()
	c := &killRig{fail: filepath.Join(t.TempDir(), "failpoint"), digests: map[string]string{}}
	c.check = checker.Options{Native: images.HostPlatform(), DiscardedLayers: opts.DiscardUnpackedLayers, Pods: !opts.NoPods}
	if opts.Binary == "" {
		opts.Binary = "containerd-failpoints"
	}
	opts.Env = append(opts.Env, "IMAGEPIN_FAILPOINT=@"+c.fail)
	opts.Extra += testkit.RetainRules
	opts.Handlers = append([]node.Handler{{Name: "foreign", Platform: testkit.Foreign}}, testkit.OnNative...)
	c.Rig = testkit.NewRig(t, opts)
	return c
}

// arm makes containerd die at a failpoint: "name", "name:2" for the second time it is reached, "*:7" for the seventh failpoint of all.
func (c *killRig) arm(spec string) {
	c.T.Helper()
	c.disarm()
	// In one step, or it is read half written.
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

// died gives the failpoint at which containerd died, or nothing.
func (c *killRig) died() string {
	b, _ := os.ReadFile(c.fail + ".died")
	return strings.TrimSpace(string(b))
}

// reached counts the failpoints that were reached since they were last armed or disarmed.
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

// revive starts containerd after it died.
func (c *killRig) revive() {
	c.T.Helper()
	if err := c.Crash(); err != nil {
		c.T.Fatal(err)
	}
	c.disarm()
	if err := c.Start(c.Ctx); err != nil {
		c.T.Fatal(err)
	}
}

// sound waits until nothing is wrong with the node: what heals does so behind the service.
func (c *killRig) sound(when string) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.Ctx, 15*time.Second)
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
			c.T.Fatalf("%s this is wrong with the node:\n%s", when, strings.Join(last, "\n"))
		}
	}
}

// purge removes everything that can be removed, and fails the test where something is left.
func (c *killRig) purge(when string) {
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
		scope, ref, _ := strings.Cut(strings.TrimPrefix(name, "imagepin/"), "/")
		if !strings.HasPrefix(name, "imagepin/") {
			continue
		}
		if err := c.command("pin", "rm", "--scope", scope, ref); err != nil {
			c.T.Fatal(err)
		}
	}
	c.Eventually("nothing is left "+when, func() bool {
		c.Collect()
		s := c.MustState()
		return s.Empty() || c.lastLook(s)
	})
}

// lastLook says what is left, for a test that waits in vain.
func (c *killRig) lastLook(s *node.State) bool {
	if c.Ctx.Err() != nil {
		c.T.Logf("left:\n%s", strings.Join(s.Lines(), "\n"))
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

// refreshed is the error of a refresh. The command tells by its status that something has changed.
func (c *killRig) refreshed(ref string) error {
	out, err := c.commandIn(c.Ctx, "refresh", ref)
	if err != nil && strings.Contains(out, "changed") {
		return nil
	}
	return err
}

// data pushes an image of next to nothing for both platforms, and returns its reference.
func (c *killRig) data(ref, version string) string {
	c.T.Helper()
	c.digests[ref] = testkit.Push(c.T, c.Reg, ref, c.version(version)).String()
	return c.Reg.Ref(ref)
}

// version builds an image of two layers, of which all versions share one.
func (c *killRig) version(version string) v1.ImageIndex {
	c.T.Helper()
	idx, err := images.DataIndex(images.Options{Files: []images.Files{{"/base": []byte("base")}, {"/version": []byte(version)}}}, images.HostPlatform(), testkit.Foreign)
	if err != nil {
		c.T.Fatal(err)
	}
	return idx
}

// pulled is the error of a pull.
func (c *killRig) pulled(ref, handler string) error {
	_, err := c.Pull(c.Ctx, ref, handler)
	return err
}

// until waits for a status; that containerd is gone ends the wait.
func (c *killRig) until(ref, handler string, present bool) error {
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
			return fmt.Errorf("%s for %q: %v", ref, handler, img)
		}
	}
}
