package integration

import (
	"context"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// imagepin runs the command and gives what it prints and whether it exited with 0.
func (r *rig) imagepin(args ...string) (string, bool) {
	r.t.Helper()
	bin := r.Options().BinDir
	out, err := exec.CommandContext(r.ctx, filepath.Join(bin, "imagepin"), append([]string{"--address", r.Address()}, args...)...).CombinedOutput()
	return string(out), err == nil
}

// wantNothingOfOurs fails the test where anything in containerd's metadata is imagepin's.
func (r *rig) wantNothingOfOurs() {
	r.t.Helper()
	for _, l := range r.state().Lines() {
		if strings.Contains(l, "io.imagepin") || strings.HasPrefix(l, "image imagepin/") || strings.Contains(l, "imagepin-retain") {
			r.t.Errorf("it is left: %s", l)
		}
	}
	spaces, err := r.Client().NamespaceService().List(r.ctx)
	if err != nil || slices.Contains(spaces, "imagepin") {
		r.t.Errorf("namespaces %q, %v", spaces, err)
	}
	if left, err := filepath.Glob(r.Path("root", "*imagepin*", "*")); err != nil || len(left) > 0 {
		r.t.Errorf("files %q, %v", left, err)
	}
}

// runs fails the test unless a container is still the process that it was.
func (r *rig) runs(c *node.Container, since int64) {
	r.t.Helper()
	s, err := c.Status(r.ctx)
	if err != nil || s.State != cri.ContainerState_CONTAINER_RUNNING || s.StartedAt != since {
		r.t.Errorf("container of %s: %v, %v", c.Config.Image.Image, s, err)
	}
}

// TestThereAndBack goes from stock to imagepin, back, to imagepin again, and uninstalls it, on one root with pods that run all the
// while: the registry is not asked once, nothing is lost, the containers go on, and in the end nothing of imagepin is left.
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{
		Binary: node.Stock, Handlers: append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...),
		DiscardUnpackedLayers: false,
	})
	opts := images.Options{}
	tag, byDigest := r.push("app:v1", opts, images.HostPlatform(), foreign)
	id := r.pull(tag, "")
	running := make(map[*node.Container]int64)
	start := func(handler, line string) {
		t.Helper()
		c := r.wantLine(r.pod(handler), node.ContainerOptions{Image: tag}, line)
		s, err := c.Status(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		running[c] = s.StartedAt
	}
	start("", opts.Line(0))
	start(second, opts.Line(0))
	listed := slices.Sorted(maps.Keys(r.images()))
	r.reg.Reset()
	to := func(binary string) {
		t.Helper()
		if err := r.Restart(r.ctx, func(o *node.Options) { o.Binary = binary }); err != nil {
			t.Fatal(err)
		}
		for c, since := range running {
			r.runs(c, since)
		}
		for _, id := range listed {
			if r.images()[id] == nil {
				t.Errorf("with %s image %s is lost", binary, id)
			}
		}
		for _, h := range []string{"", second} {
			r.wantRun(h, tag, opts.Line(0))
		}
		r.wantNames(id, []string{tag}, []string{byDigest})
		r.offline("running with " + binary + " what was there")
	}
	to(node.Ours)
	// What only imagepin can do.
	theirs := r.pull(tag, "foreign")
	if out, ok := r.imagepin("pin", "set", tag, strings.SplitN(byDigest, "@", 2)[1], "--retain"); !ok {
		t.Fatal(out)
	}
	start("foreign", line(opts, foreign))
	r.reg.Reset()
	to(node.Stock)
	to(node.Ours)

	out, ok := r.imagepin("uninstall")
	if ok || !strings.Contains(out, "Nothing was changed") || !strings.Contains(out, "1 pins") {
		t.Errorf("uninstall without --yes: %s", out)
	}
	before := r.images()
	out, ok = r.imagepin("uninstall", "--yes")
	if !ok {
		t.Fatal(out)
	}
	r.wantNothingOfOurs()
	// It goes on as stock until it is restarted, and writes nothing of its own.
	if _, err := r.Ctr(r.ctx, "images", "tag", tag, r.reg.Ref("app:later")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.wantRun("", tag, opts.Line(0))
	}
	r.pull(tag, "")
	r.wantNothingOfOurs()
	if out, ok := r.imagepin("images"); ok || !strings.Contains(out, "uninstalled") {
		t.Errorf("the control service answers: %s", out)
	}
	if out, ok := r.imagepin("uninstall", "--yes"); !ok || !strings.Contains(out, "Removed 0 labels") {
		t.Errorf("the second time: %s", out)
	}
	if _, err := r.Ctr(r.ctx, "images", "rm", r.reg.Ref("app:later")); err != nil {
		t.Fatal(err)
	}
	r.reg.Reset()
	to(node.Stock)
	r.wantNothingOfOurs()
	for id := range before {
		if r.images()[id] == nil {
			t.Errorf("image %s is lost", id)
		}
	}
	if r.images()[theirs] == nil {
		t.Error("the image of the other platform is lost while a container runs it")
	}
}

// TestUninstallUnderWay uninstalls while a pull is under way: it waits, and what the pull wrote is removed too.
func TestUninstallUnderWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	tag, _ := r.push("app:v1", images.Options{}, images.HostPlatform())
	pulled := make(chan error, 1)
	go func() {
		_, err := r.Pull(r.ctx, tag, "")
		pulled <- err
	}()
	r.eventually("the registry is asked", func() bool { return len(r.reg.Requests()) > 0 })
	if out, ok := r.imagepin("uninstall", "--yes"); !ok {
		t.Fatal(out)
	}
	if err := <-pulled; err != nil {
		t.Error(err)
	}
	r.wantNothingOfOurs()
	r.eventually("stock's service has the image", func() bool {
		img, err := r.ImageStatus(context.WithoutCancel(r.ctx), tag, "")
		return err == nil && img != nil
	})
}

// TestUninstallEndsWhatNobodyWaitsFor uninstalls while a sandbox image is made ready whose caller has gone: that ends first, and when the registry
// goes on nothing of it is written.
func TestUninstallEndsWhatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: onNative})
	before := r.state()
	release := make(chan struct{})
	blob := registry.Is("GET", registry.Blob)
	r.reg.SetFault(registry.FaultIf(registry.Fault{Hang: release, After: 60}, blob))
	gone, cancel := context.WithCancel(r.ctx)
	failed := make(chan error, 1)
	go func() {
		_, err := r.RunPod(gone, node.PodOptions{Handler: second})
		failed <- err
	}()
	awaitRequest(t, r.reg, blob)
	cancel()
	<-failed
	if r.reg.Count(blob, func(q registry.Request) bool { return !q.Done }) == 0 {
		t.Fatal("the work ended with its caller")
	}
	if out, ok := r.imagepin("uninstall", "--yes"); !ok {
		t.Fatal(out)
	}
	close(release)
	r.reg.SetFault(nil)
	awaitIdle(t, r.reg)
	r.collect()
	r.wantNothingOfOurs()
	r.wantState("after what nobody waited for", before)
	// What is asked of the CRI now is for containerd's own.
	tag, _ := r.push("app:v1", images.Options{}, images.HostPlatform())
	r.pull(tag, "")
	r.wantNothingOfOurs()
}
