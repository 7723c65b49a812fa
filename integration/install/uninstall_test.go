package install

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// wantNothingOfOurs fails the test where anything in containerd's metadata is imagepin's.
func wantNothingOfOurs(r *testkit.Rig) {
	r.T.Helper()
	for _, l := range r.MustState().Lines() {
		if strings.Contains(l, "io.imagepin") || strings.HasPrefix(l, "image imagepin/") || strings.Contains(l, "imagepin-retain") {
			r.T.Errorf("it is left: %s", l)
		}
	}
	spaces, err := r.Client().NamespaceService().List(r.Ctx)
	if err != nil || slices.Contains(spaces, "imagepin") {
		r.T.Errorf("namespaces %q, %v", spaces, err)
	}
	if left, err := filepath.Glob(r.Path("root", "*imagepin*", "*")); err != nil || len(left) > 0 {
		r.T.Errorf("files %q, %v", left, err)
	}
}

// runs fails the test unless a container is still the process that it was.
func runs(r *testkit.Rig, c *node.Container, since int64) {
	r.T.Helper()
	s, err := c.Status(r.Ctx)
	if err != nil || s.State != cri.ContainerState_CONTAINER_RUNNING || s.StartedAt != since {
		r.T.Errorf("container of %s: %v, %v", c.Config.Image.Image, s, err)
	}
}

// TestThereAndBack goes from stock to imagepin, back, to imagepin again, and uninstalls it, on one root with pods that run all the
// while: the registry is not asked once, nothing is lost, the containers go on, and in the end nothing of imagepin is left.
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{
		Binary: node.Stock, Handlers: append([]node.Handler{{Name: "foreign", Platform: testkit.Foreign}}, testkit.OnNative...),
		DiscardUnpackedLayers: false,
	})
	opts := images.Options{}
	tag, byDigest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	id := r.MustPull(tag, "")
	running := make(map[*node.Container]int64)
	start := func(handler, line string) {
		t.Helper()
		c := r.WantLine(r.MustPod(handler), node.ContainerOptions{Image: tag}, line)
		s, err := c.Status(r.Ctx)
		if err != nil {
			t.Fatal(err)
		}
		running[c] = s.StartedAt
	}
	start("", opts.Line(0))
	start(testkit.Second, opts.Line(0))
	listed := slices.Sorted(maps.Keys(r.ImagesByID()))
	r.Reg.Reset()
	to := func(binary string) {
		t.Helper()
		if err := r.Restart(r.Ctx, func(o *node.Options) { o.Binary = binary }); err != nil {
			t.Fatal(err)
		}
		for c, since := range running {
			runs(r, c, since)
		}
		for _, id := range listed {
			if r.ImagesByID()[id] == nil {
				t.Errorf("with %s image %s is lost", binary, id)
			}
		}
		for _, h := range []string{"", testkit.Second} {
			r.WantRun(h, tag, opts.Line(0))
		}
		r.WantNames(id, []string{tag}, []string{byDigest})
		r.WantNoRequests("running with " + binary + " what was there")
	}
	to(node.Ours)
	// What only imagepin can do.
	theirs := r.MustPull(tag, "foreign")
	if out, ok := r.Command("pin", "set", tag, strings.SplitN(byDigest, "@", 2)[1], "--retain"); !ok {
		t.Fatal(out)
	}
	start("foreign", testkit.Line(opts, testkit.Foreign))
	r.Reg.Reset()
	to(node.Stock)
	to(node.Ours)

	out, ok := r.Command("uninstall")
	if ok || !strings.Contains(out, "Nothing was changed") || !strings.Contains(out, "1 pins") {
		t.Errorf("uninstall without --yes: %s", out)
	}
	before := r.ImagesByID()
	out, ok = r.Command("uninstall", "--yes")
	if !ok {
		t.Fatal(out)
	}
	wantNothingOfOurs(r)
	// It goes on as stock until it is restarted, and writes nothing of its own.
	if _, err := r.Ctr(r.Ctx, "images", "tag", tag, r.Reg.Ref("app:later")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.WantRun("", tag, opts.Line(0))
	}
	r.MustPull(tag, "")
	wantNothingOfOurs(r)
	if out, ok := r.Command("images"); ok || !strings.Contains(out, "uninstalled") {
		t.Errorf("the control service answers: %s", out)
	}
	if out, ok := r.Command("uninstall", "--yes"); !ok || !strings.Contains(out, "Removed 0 labels") {
		t.Errorf("the second time: %s", out)
	}
	if _, err := r.Ctr(r.Ctx, "images", "rm", r.Reg.Ref("app:later")); err != nil {
		t.Fatal(err)
	}
	r.Reg.Reset()
	to(node.Stock)
	wantNothingOfOurs(r)
	for id := range before {
		if r.ImagesByID()[id] == nil {
			t.Errorf("image %s is lost", id)
		}
	}
	if r.ImagesByID()[theirs] == nil {
		t.Error("the image of the other platform is lost while a container runs it")
	}
}

// TestUninstallUnderWay uninstalls while a pull is under way: it waits, and what the pull wrote is removed too.
func TestUninstallUnderWay(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	pulled := make(chan error, 1)
	go func() {
		_, err := r.Pull(r.Ctx, tag, "")
		pulled <- err
	}()
	r.Eventually("the registry is asked", func() bool { return len(r.Reg.Requests()) > 0 })
	if out, ok := r.Command("uninstall", "--yes"); !ok {
		t.Fatal(out)
	}
	if err := <-pulled; err != nil {
		t.Error(err)
	}
	wantNothingOfOurs(r)
	r.Eventually("stock's service has the image", func() bool {
		img, err := r.ImageStatus(context.WithoutCancel(r.Ctx), tag, "")
		return err == nil && img != nil
	})
}

// TestUninstallEndsWhatNobodyWaitsFor uninstalls while a sandbox image is made ready whose caller has gone: that ends first, and when the registry
// goes on nothing of it is written.
func TestUninstallEndsWhatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	before := r.MustState()
	release := make(chan struct{})
	blob := registry.Is("GET", registry.Blob)
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: release, After: 60}, blob))
	gone, cancel := context.WithCancel(r.Ctx)
	failed := make(chan error, 1)
	go func() {
		_, err := r.RunPod(gone, node.PodOptions{Handler: testkit.Second})
		failed <- err
	}()
	testkit.AwaitRequest(t, r.Reg, blob)
	cancel()
	<-failed
	if r.Reg.Count(blob, func(q registry.Request) bool { return !q.Done }) == 0 {
		t.Fatal("the work ended with its caller")
	}
	if out, ok := r.Command("uninstall", "--yes"); !ok {
		t.Fatal(out)
	}
	close(release)
	r.Reg.SetFault(nil)
	testkit.AwaitIdle(t, r.Reg)
	r.Collect()
	wantNothingOfOurs(r)
	r.WantState("after what nobody waited for", before)
	// What is asked of the CRI now is for containerd's own.
	tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	r.MustPull(tag, "")
	wantNothingOfOurs(r)
}
