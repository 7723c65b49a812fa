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

// wantUninstalled fails the test if containerd's metadata or its root directory has anything of imagepin.
func wantUninstalled(r *testkit.Rig) {
	r.T.Helper()
	for _, l := range r.MustState().Lines() {
		if strings.Contains(l, "io.imagepin") || strings.HasPrefix(l, "image imagepin/") || strings.Contains(l, "imagepin-retain") {
			r.T.Errorf("left in the metadata: %s", l)
		}
	}
	spaces, err := r.Client().NamespaceService().List(r.Ctx)
	if err != nil || slices.Contains(spaces, "imagepin") {
		r.T.Errorf("got namespaces %q, %v, want no namespace imagepin", spaces, err)
	}
	if left, err := filepath.Glob(r.Path("root", "*imagepin*", "*")); err != nil || len(left) > 0 {
		r.T.Errorf("got files %q, %v, want none", left, err)
	}
}

// wantRunning fails the test unless a container has been running since a time.
func wantRunning(r *testkit.Rig, c *node.Container, since int64) {
	r.T.Helper()
	s, err := c.Status(r.Ctx)
	if err != nil || s.State != cri.ContainerState_CONTAINER_RUNNING || s.StartedAt != since {
		r.T.Errorf("container of %s: %v, %v", c.Config.Image.Image, s, err)
	}
}

// TestSwitchAndUninstall switches a node with running pods from stock to imagepin, back and again, and uninstalls
// imagepin. Containers keep running, no image is lost, the registry gets no request, and nothing of imagepin is left.
func TestSwitchAndUninstall(t *testing.T) {
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
			wantRunning(r, c, since)
		}
		for _, id := range listed {
			if r.ImagesByID()[id] == nil {
				t.Errorf("%s does not list image %s", binary, id)
			}
		}
		for _, h := range []string{"", testkit.Second} {
			r.WantRun(h, tag, opts.Line(0))
		}
		r.WantNames(id, []string{tag}, []string{byDigest})
		r.WantNoRequests("running existing images with " + binary)
	}
	to(node.Ours)
	// Use what only imagepin supports.
	foreign := r.MustPull(tag, "foreign")
	if out, ok := r.Command("pin", "set", tag, strings.SplitN(byDigest, "@", 2)[1], "--retain"); !ok {
		t.Fatal(out)
	}
	start("foreign", testkit.Line(opts, testkit.Foreign))
	r.Reg.Reset()
	to(node.Stock)
	to(node.Ours)

	out, ok := r.Command("uninstall")
	if ok || !strings.Contains(out, "Nothing was changed") || !strings.Contains(out, "1 pin") {
		t.Errorf("uninstall without --yes: %s", out)
	}
	before := r.ImagesByID()
	out, ok = r.Command("uninstall", "--yes")
	if !ok {
		t.Fatal(out)
	}
	wantUninstalled(r)
	// Until the restart, imagepin behaves like stock and writes nothing of its own.
	if _, err := r.Ctr(r.Ctx, "images", "tag", tag, r.Reg.Ref("app:later")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.WantRun("", tag, opts.Line(0))
	}
	r.MustPull(tag, "")
	wantUninstalled(r)
	if out, ok := r.Command("images"); ok || !strings.Contains(out, "uninstalled") {
		t.Errorf("the control service still answers: %s", out)
	}
	if out, ok := r.Command("status"); ok || !strings.Contains(out, "imagepin is uninstalled: ") || !strings.Contains(out, "Images:      0") {
		t.Errorf("status after uninstall: %s", out)
	}
	if out, ok := r.Command("uninstall", "--yes"); !ok || !strings.Contains(out, "Removed 0 labels") {
		t.Errorf("second uninstall: %s", out)
	}
	if _, err := r.Ctr(r.Ctx, "images", "rm", r.Reg.Ref("app:later")); err != nil {
		t.Fatal(err)
	}
	r.Reg.Reset()
	to(node.Stock)
	wantUninstalled(r)
	for id := range before {
		if r.ImagesByID()[id] == nil {
			t.Errorf("image %s is lost", id)
		}
	}
	if r.ImagesByID()[foreign] == nil {
		t.Error("the image of the other platform is lost while a container runs it")
	}
}

// TestUninstallDuringPull checks that an uninstall waits for a running pull, and removes what the pull wrote.
func TestUninstallDuringPull(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	pulled := make(chan error, 1)
	go func() {
		_, err := r.Pull(r.Ctx, tag, "")
		pulled <- err
	}()
	r.Eventually("the registry gets a request", func() bool { return len(r.Reg.Requests()) > 0 })
	if out, ok := r.Command("uninstall", "--yes"); !ok {
		t.Fatal(out)
	}
	if err := <-pulled; err != nil {
		t.Error(err)
	}
	wantUninstalled(r)
	r.Eventually("containerd's own CRI service lists the image", func() bool {
		img, err := r.ImageStatus(context.WithoutCancel(r.Ctx), tag, "")
		return err == nil && img != nil
	})
}

// TestUninstallCancelsAbandonedPull checks that an uninstall ends the pull of a sandbox image whose caller has
// canceled. The pull writes nothing after the registry continues.
func TestUninstallCancelsAbandonedPull(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	before := r.MustState()
	release := make(chan struct{})
	blob := registry.Is("GET", registry.Blob)
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: release, After: 60}, blob))
	ctx, cancel := context.WithCancel(r.Ctx)
	failed := make(chan error, 1)
	go func() {
		_, err := r.RunPod(ctx, node.PodOptions{Handler: testkit.Second})
		failed <- err
	}()
	testkit.AwaitRequest(t, r.Reg, blob)
	cancel()
	<-failed
	if r.Reg.Count(blob, func(q registry.Request) bool { return !q.Done }) == 0 {
		t.Fatal("the pull ended with its caller")
	}
	if out, ok := r.Command("uninstall", "--yes"); !ok {
		t.Fatal(out)
	}
	close(release)
	r.Reg.SetFault(nil)
	testkit.AwaitIdle(t, r.Reg)
	r.Collect()
	wantUninstalled(r)
	r.WantState("after the abandoned pull", before)
	// containerd's own CRI service answers the calls now.
	tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	r.MustPull(tag, "")
	wantUninstalled(r)
}
