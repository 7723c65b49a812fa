package restart

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestCrashOffline kills containerd and starts it again without a registry. The same images are listed, and run for
// every target.
func TestCrashOffline(t *testing.T) {
	t.Parallel()
	for _, second := range testkit.SecondSnapshotters {
		for _, discard := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/discard=%t", second, discard), func(t *testing.T) {
				t.Parallel()
				r := testkit.NewRig(t, testkit.WithSecond(second, node.Options{
					DiscardUnpackedLayers: discard, Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}},
				}))
				opts := images.Options{}
				tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
				platformOf := map[string]string{"runc": images.HostPlatform(), testkit.Second: images.HostPlatform(), "foreign": testkit.Foreign}
				id := make(map[string]string)
				for h := range platformOf {
					id[h] = r.MustPull(tag, h)
					r.MustRemovePod(r.MustPod(h)) // pulls the sandbox image
				}
				before := r.ImagesByID()
				r.Collect()
				r.Reg.Reset()
				r.Reg.Down()
				r.KillAndRestart(nil)
				testkit.WantSameImages(t, "after a crash", before, r.ImagesByID())
				for h, platform := range platformOf {
					for _, name := range []string{tag, digest, id[h]} {
						if got := r.MustStatus(name, h).GetId(); got != id[h] {
							t.Errorf("handler %s: ImageStatus %s returned %q after a crash, want %s", h, name, got, id[h])
						}
					}
					r.WantRun(h, tag, testkit.Line(opts, platform))
				}
			})
		}
	}
}

// TestLeftSnapshotDirectory pulls an image while each snapshotter has the directory of a snapshot that does not exist, as
// after a kill of containerd between the rename of the directory and the commit of the snapshot.
func TestLeftSnapshotDirectory(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: testkit.OnNative})
	tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	for _, snapshotter := range []string{"overlayfs", "native"} {
		left := r.Path("root", "io.containerd.snapshotter.v1."+snapshotter, "snapshots", "1")
		if err := os.MkdirAll(filepath.Join(left, "fs", "left"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if first, second := r.MustPull(tag, ""), r.MustPull(tag, testkit.Second); first != second {
		t.Errorf("the pulls returned %s and %s", first, second)
	}
	if found := r.DeepCheck(false); len(found) > 0 {
		t.Errorf("a deep check found %v", found)
	}
}

// TestKilledPullLeavesNothing kills containerd during a pull. After a restart, the content and the leases of the pull
// are deleted, and the image can be pulled.
func TestKilledPullLeavesNothing(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	kept, _ := r.Push("kept:v1", images.Options{Version: "kept"}, images.HostPlatform())
	id := r.MustPull(kept, "")
	// The lease of another tool must stay. The lease of a killed call must be deleted.
	ctx := testkit.NSContext(r.Ctx)
	theirs, err := r.Client().LeasesService().Create(ctx, leases.WithID("theirs"), leases.WithLabel("io.example", "pull"))
	if err != nil {
		t.Fatal(err)
	}
	before := r.MustState()
	if _, err := r.Client().LeasesService().Create(ctx, leases.WithID("left"), leases.WithLabel("io.imagepin.lease", "use")); err != nil {
		t.Fatal(err)
	}

	opts := images.Options{Version: "killed", Random: []images.Random{{Size: 1 << 20}, {Size: 1 << 20, Seed: 1}}}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	release := make(chan struct{})
	defer close(release)
	r.Reg.Reset()
	r.Reg.SetFault(func(q registry.Request) *registry.Fault {
		if q.Kind == registry.Blob && q.Method == "GET" {
			return &registry.Fault{Hang: release, After: 100_000}
		}
		return nil
	})
	failed := make(chan error, 1)
	go func() {
		_, err := r.Images().PullImage(r.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: tag}})
		failed <- err
	}()
	r.Eventually("a layer is being fetched", func() bool { return len(r.MustState().Ingests) > 0 })
	if err := r.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Error("the pull succeeded although containerd was killed")
	}
	if err := r.Start(r.Ctx); err != nil {
		t.Fatal(err)
	}
	if img := r.MustStatus(tag, ""); img != nil {
		t.Errorf("ImageStatus returned the image of a killed pull: %v", img)
	}
	r.WantState("after the restart", before)
	if got := r.MustStatus(kept, "").GetId(); got != id {
		t.Errorf("ImageStatus %s returned %q, want %s", kept, got, id)
	}
	r.Reg.SetFault(nil)
	r.MustPull(tag, "")
	if err := r.Client().LeasesService().Delete(testkit.NSContext(r.Ctx), theirs); err != nil {
		t.Error(err)
	}
}

// written returns when containerd last wrote each record.
func written(s *node.State) map[string]time.Time {
	m := make(map[string]time.Time)
	for name, i := range s.Images {
		m["image "+name] = i.UpdatedAt
	}
	for name, c := range s.Content {
		m["content "+name] = c.UpdatedAt
	}
	for name, l := range s.Leases {
		m["lease "+name] = l.CreatedAt
	}
	for name, i := range s.Snapshots {
		m["snapshot "+name] = i.Updated
	}
	return m
}

func wantNothingWritten(t *testing.T, what string, before, after *node.State) {
	t.Helper()
	was, is := written(before), written(after)
	for name, at := range is {
		if !was[name].Equal(at) {
			t.Errorf("%s wrote %s at %s, last written at %s", what, name, at, was[name])
		}
	}
	for name := range was {
		if is[name].IsZero() {
			t.Errorf("%s deleted %s", what, name)
		}
	}
}

// TestNothingIsWrittenWithoutNeed checks, by the times of containerd's records, that restarts, pulls of ready images
// and read-only calls write nothing. Images that stock containerd pulled are written once, when they are adopted.
func TestNothingIsWrittenWithoutNeed(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Binary: node.Stock, Handlers: append([]node.Handler{{Name: "foreign", Platform: testkit.Foreign}}, testkit.OnNative...)})
	adopted, _ := r.Push("adopted:v1", images.Options{Version: "adopted"}, images.HostPlatform(), testkit.Foreign)
	tag, digest := r.Push("app:v1", images.Options{}, images.HostPlatform(), testkit.Foreign)
	r.MustPull(adopted, "")
	r.MustRemovePod(r.MustPod(""))
	if err := r.Restart(r.Ctx, func(o *node.Options) { o.Binary = node.Ours }); err != nil {
		t.Fatal(err)
	}
	handlers := []string{"", testkit.Second, "foreign"}
	for _, h := range handlers {
		r.MustPull(tag, h)
	}
	before := r.MustState()

	for _, h := range handlers {
		r.MustPull(tag, h)
		r.MustPull(digest, h)
		r.MustStatus(tag, h)
		r.MustStatus(adopted, h)
	}
	r.Listed()
	if _, err := r.Images().ImageFsInfo(r.Ctx, &cri.ImageFsInfoRequest{}); err != nil {
		t.Fatal(err)
	}
	wantNothingWritten(t, "reading and pulling ready images", before, r.MustState())
	if err := r.Restart(r.Ctx, nil); err != nil {
		t.Fatal(err)
	}
	wantNothingWritten(t, "a restart", before, r.MustState())
	r.KillAndRestart(nil)
	wantNothingWritten(t, "a crash", before, r.MustState())
}

// TestUpgradeAndRollback switches a node between stock containerd and containerd with imagepin, without a registry.
// Each lists and runs the images that the other has pulled.
func TestUpgradeAndRollback(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Binary: node.Stock, Handlers: append([]node.Handler{{Name: "foreign", Platform: testkit.Foreign}}, testkit.OnNative...)})
	theirs, ours := images.Options{Version: "stocks", User: "0"}, images.Options{Version: "ours"}
	tag, _ := r.Push("app:stock", theirs, images.HostPlatform(), testkit.Foreign)
	plain, _ := r.PushImage("plain:stock", testkit.App(t, images.Options{Version: "plain"}))
	_, byDigest := r.Push("digest:stock", images.Options{Version: "digest"}, testkit.Foreign, images.HostPlatform())
	for _, ref := range []string{tag, plain, byDigest} {
		r.MustPull(ref, "")
	}
	r.WantRun("", tag, theirs.Line(0))
	r.WantRun(testkit.Second, tag, theirs.Line(0)) // stock containerd unpacks it for this handler
	stock := testkit.WithoutSpec(r.ImagesByID())
	start := func(binary string) {
		t.Helper()
		r.Reg.Reset()
		r.Reg.Down()
		r.KillAndRestart(func(o *node.Options) { o.Binary = binary })
	}

	start(node.Ours)
	testkit.WantSameImages(t, "after the upgrade", stock, testkit.WithoutSpec(r.ImagesByID()))
	for _, h := range []string{"runc", testkit.Second} {
		if r.MustStatus(tag, h) == nil {
			t.Errorf("handler %s: the image that stock containerd unpacked is not available", h)
		}
		r.WantRun(h, tag, theirs.Line(0))
	}
	r.WantRun("", plain, testkit.Line(images.Options{Version: "plain"}, images.HostPlatform()))
	r.WantRun("", byDigest, testkit.Line(images.Options{Version: "digest"}, images.HostPlatform()))
	// The layers are on the node, so that this image can be unpacked for native too.
	r.WantRun(testkit.Second, plain, testkit.Line(images.Options{Version: "plain"}, images.HostPlatform()))
	if img := r.MustStatus(tag, "foreign"); img != nil {
		t.Errorf("ImageStatus returned an image for a platform that stock containerd did not pull: %v", img)
	}

	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	fresh, freshDigest := r.Push("app:ours", ours, testkit.Foreign, images.HostPlatform())
	var id string
	for _, h := range []string{"foreign", "", testkit.Second} {
		got := r.MustPull(fresh, h)
		if h == "" {
			id = got
		}
	}
	listed := r.ImagesByID()

	start(node.Stock)
	img := r.MustStatus(fresh, "")
	if img.GetId() != id || !slices.Equal(img.GetRepoTags(), []string{fresh}) || !slices.Equal(img.GetRepoDigests(), []string{freshDigest}) {
		t.Errorf("after the rollback ImageStatus returned %v, want ID %s, tag %s and digest %s", img, id, fresh, freshDigest)
	}
	for ref, opts := range map[string]images.Options{fresh: ours, tag: theirs} {
		r.WantRun("", ref, opts.Line(0))
		r.WantRun(testkit.Second, ref, opts.Line(0))
	}

	start(node.Ours)
	testkit.WantSameImages(t, "after the second upgrade", listed, r.ImagesByID())
	for h, platform := range map[string]string{"": images.HostPlatform(), testkit.Second: images.HostPlatform(), "foreign": testkit.Foreign} {
		r.WantRun(h, fresh, testkit.Line(ours, platform))
	}

	// imagepin finds what stock containerd has removed and pulled again.
	start(node.Stock)
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.MustRemove(tag, "")
	newer := images.Options{Version: "newer"}
	_, newerDigest := r.Push("app:ours", newer, images.HostPlatform(), testkit.Foreign)
	newerID := r.MustPull(fresh, "")
	start(node.Ours)
	for _, h := range []string{"", "runc", testkit.Second} {
		if img := r.MustStatus(tag, h); img != nil {
			t.Errorf("handler %q: ImageStatus returned an image that stock containerd removed: %v", h, img)
		}
	}
	if got := r.MustStatus(fresh, "runc"); got.GetId() != newerID || !slices.Equal(got.GetRepoDigests(), []string{newerDigest}) {
		t.Errorf("ImageStatus returned %v for the tag that stock containerd pulled again, want %s", got, newerID)
	}
	r.WantRun("", fresh, newer.Line(0))
}

// TestOtherTools checks that the CRI shows what ctr changes.
func TestOtherTools(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: append([]node.Handler{{Name: "foreign", Platform: testkit.Foreign}}, testkit.OnNative...)})
	r.MustRemovePod(r.MustPod(""))
	r.MustRemovePod(r.MustPod(testkit.Second))
	r.Collect()
	before := r.MustState()
	opts := images.Options{}
	tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	ctr := func(args ...string) {
		t.Helper()
		if _, err := r.Ctr(r.Ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	awaitStatus := func(ref, handler, id string) {
		t.Helper()
		what := fmt.Sprintf("ImageStatus %s for handler %s returns %q", ref, handler, id)
		testkit.Eventually(t, what, func(context.Context) (bool, error) {
			img, err := r.ImageStatus(r.Ctx, ref, handler)
			return img.GetId() == id, err
		})
	}

	// Export the image and remove it.
	id := r.MustPull(tag, "")
	archive := r.Path("app.tar")
	ctr("images", "export", "--local", "--platform", images.HostPlatform(), archive, tag)
	r.MustRemove(tag, "")
	r.WantState("after the removal", before)
	r.Reg.Reset()
	r.Reg.Down()

	ctr("images", "import", archive)
	awaitStatus(tag, "runc", id)
	r.WantNames(id, []string{tag}, nil)
	r.WantRun("", tag, opts.Line(0))
	ctr("images", "tag", tag, r.Reg.Ref("app:mine"))
	awaitStatus(r.Reg.Ref("app:mine"), "runc", id)
	ctr("images", "rm", tag)
	awaitStatus(tag, "runc", "")
	awaitStatus(id, "runc", id)
	if r.MustStatus(tag, "") != nil {
		t.Error("ImageStatus returns the image of the removed tag")
	}
	ctr("images", "rm", r.Reg.Ref("app:mine"))
	awaitStatus(r.Reg.Ref("app:mine"), "", "")
	removeByID := func() {
		t.Helper()
		awaitStatus(id, "", id)                              // as in stock containerd
		r.Eventually("the image has no names", func() bool { // imagepin follows the removals of its names one by one
			img := r.Listed()[id]
			return img != nil && len(img.RepoTags)+len(img.RepoDigests) == 0
		})
		r.MustRemove(id, "")
		r.WantState("after the removal by ID", before)
	}
	removeByID()

	// Import it without unpacking it. imagepin unpacks it for the handlers of the node's platform.
	ctr("images", "import", "--no-unpack", archive)
	awaitStatus(tag, "runc", id)
	r.WantRun("", tag, opts.Line(0))
	r.WantRun(testkit.Second, tag, opts.Line(0))
	r.MustRemove(tag, "")
	r.WantState("after the removal of the imported image", before)

	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	ctr("images", "pull", "--local", "--plain-http", tag)
	awaitStatus(tag, "runc", id)
	r.Reg.Reset()
	r.WantRun("", tag, opts.Line(0))
	r.WantRun(testkit.Second, tag, opts.Line(0))
	r.WantNoRequests("running an image that ctr pulled")
	for _, name := range []string{tag, digest} {
		ctr("images", "rm", name)
		awaitStatus(name, "runc", "")
	}
	removeByID()

	// Remove the record of a tag that imagepin has pulled.
	for _, h := range []string{"", testkit.Second, "foreign"} {
		r.MustPull(tag, h)
	}
	r.MustStatus(tag, "") // the last answer
	ctr("images", "rm", tag)
	awaitStatus(tag, "runc", "")
	awaitStatus(tag, testkit.Second, "")
	r.WantNames(id, nil, []string{digest})
	if r.MustStatus(tag, "foreign") == nil {
		t.Error("the image of the other platform is not available, although its records exist")
	}
	r.WantRun("", digest, opts.Line(0))
	for _, i := range r.Listed() {
		r.MustRemove(i.Id, "")
	}
	r.WantState("at the end", before)
}

// TestDisabled checks that containerd's own CRI serves all calls if the plugin is disabled, and that imagepin adopts
// the images when the plugin is enabled again.
func TestDisabled(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{
		DisabledPlugins: []string{"io.containerd.imagepin.v1.images"},
		Handlers:        []node.Handler{{Name: "foreign", Platform: testkit.Foreign}},
	})
	opts := images.Options{}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	id := r.MustPull(tag, "foreign")
	r.WantRun("foreign", id, opts.Line(0)) // for the node's platform, as in stock containerd
	if spec := r.Listed()[id].GetSpec(); spec != nil {
		t.Errorf("the image has a spec, which only imagepin sets: %v", spec)
	}
	for name, i := range r.MustState().Images {
		for label := range maps.Keys(i.Labels) {
			if strings.HasPrefix(label, "io.imagepin.") {
				t.Errorf("record %s has label %s", name, label)
			}
		}
	}
	if !strings.Contains(r.Logs(), "imagepin is disabled") {
		t.Error("the log does not say that imagepin is disabled")
	}
	r.Reg.Down()
	r.KillAndRestart(func(o *node.Options) { o.DisabledPlugins = nil })
	if got := r.MustStatus(tag, "runc").GetId(); got != id {
		t.Errorf("after the plugin is enabled ImageStatus returned %q, want %s", got, id)
	}
	if img := r.MustStatus(tag, "foreign"); img != nil {
		t.Errorf("after the plugin is enabled ImageStatus returned an image of the other platform: %v", img)
	}
}
