package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestCrashOffline kills containerd and starts it again without a registry: what was listed is listed, and pods of every target start.
func TestCrashOffline(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard=%t", discard), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, node.Options{
				DiscardUnpackedLayers: discard,
				Handlers:              append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...),
			})
			opts := images.Options{}
			tag, digest := r.push("app:v1", opts, images.HostPlatform(), foreign)
			platformOf := map[string]string{"runc": images.HostPlatform(), second: images.HostPlatform(), "foreign": foreign}
			id := make(map[string]string)
			for h := range platformOf {
				id[h] = r.pull(tag, h)
				r.removePod(r.pod(h)) // has the sandbox image there
			}
			before := r.images()
			r.collect()
			r.reg.Reset()
			r.reg.Down()
			r.crash(nil)
			wantSameImages(t, "after a crash", before, r.images())
			for h, platform := range platformOf {
				for _, name := range []string{tag, digest, id[h]} {
					if got := r.status(name, h).GetId(); got != id[h] {
						t.Errorf("handler %s: ImageStatus %s says %q after a crash, not %s", h, name, got, id[h])
					}
				}
				r.wantRun(h, tag, line(opts, platform))
			}
		})
	}
}

// images are CRI's, by ID, the sandbox image included.
func (r *rig) images() map[string]*cri.Image {
	r.t.Helper()
	all, err := r.ListImages(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	m := make(map[string]*cri.Image)
	for _, i := range all {
		m[i.Id] = i
	}
	return m
}

func wantSameImages(t *testing.T, when string, want, got map[string]*cri.Image) {
	t.Helper()
	for id := range want {
		if !proto.Equal(want[id], got[id]) {
			t.Errorf("%s image %s is listed as %v, not as %v", when, id, got[id], want[id])
		}
	}
	for id := range got {
		if want[id] == nil {
			t.Errorf("%s there is an image more: %v", when, got[id])
		}
	}
}

// TestKilledPullLeavesNothing kills containerd in the middle of a pull. When it is back, what the pull had fetched and held is gone,
// and the image can be pulled.
func TestKilledPullLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	kept, _ := r.push("kept:v1", images.Options{Version: "kept"}, images.HostPlatform())
	id := r.pull(kept, "")
	// Left by a call that held an image, and by somebody else.
	ctx := nsctx(r.ctx)
	theirs, err := r.Client().LeasesService().Create(ctx, leases.WithID("theirs"), leases.WithLabel("io.example", "pull"))
	if err != nil {
		t.Fatal(err)
	}
	before := r.state()
	if _, err := r.Client().LeasesService().Create(ctx, leases.WithID("left"), leases.WithLabel("io.imagepin.lease", "use")); err != nil {
		t.Fatal(err)
	}

	opts := images.Options{Version: "killed", Random: []images.Random{{Size: 1 << 20}, {Size: 1 << 20, Seed: 1}}}
	tag, _ := r.push("app:v1", opts, images.HostPlatform(), foreign)
	release := make(chan struct{})
	defer close(release)
	r.reg.Reset()
	r.reg.SetFault(func(q registry.Request) *registry.Fault {
		if q.Kind == registry.Blob && q.Method == "GET" {
			return &registry.Fault{Hang: release, After: 100_000}
		}
		return nil
	})
	failed := make(chan error, 1)
	go func() {
		_, err := r.Images().PullImage(r.ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: tag}})
		failed <- err
	}()
	r.eventually("a layer is on its way", func() bool { return len(r.state().Ingests) > 0 })
	if err := r.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Error("a pull whose containerd was killed succeeded")
	}
	if err := r.Start(r.ctx); err != nil {
		t.Fatal(err)
	}
	if img := r.status(tag, ""); img != nil {
		t.Errorf("there is an image of a pull that was killed: %v", img)
	}
	r.wantState("after the restart", before)
	if got := r.status(kept, "").GetId(); got != id {
		t.Errorf("the image that was there is %q, not %s", got, id)
	}
	r.reg.SetFault(nil)
	r.pull(tag, "")
	if err := r.Client().LeasesService().Delete(nsctx(r.ctx), theirs); err != nil {
		t.Error(err)
	}
}

// written are the times at which containerd's records were last written.
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
			t.Errorf("%s wrote %s at %s; it was last written at %s", what, name, at, was[name])
		}
	}
	for name := range was {
		if is[name].IsZero() {
			t.Errorf("%s deleted %s", what, name)
		}
	}
}

// TestNothingIsWrittenWithoutNeed looks at what containerd's records say of their last change: over restarts, pulls of what is there,
// and calls that only ask, none is written. Adopting what stock had pulled writes once.
func TestNothingIsWrittenWithoutNeed(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Binary: node.Stock, Handlers: append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...)})
	adopted, _ := r.push("adopted:v1", images.Options{Version: "adopted"}, images.HostPlatform(), foreign)
	tag, digest := r.push("app:v1", images.Options{}, images.HostPlatform(), foreign)
	r.pull(adopted, "")
	r.removePod(r.pod(""))
	if err := r.Restart(r.ctx, func(o *node.Options) { o.Binary = node.Ours }); err != nil {
		t.Fatal(err)
	}
	handlers := []string{"", second, "foreign"}
	for _, h := range handlers {
		r.pull(tag, h)
	}
	before := r.state()

	for _, h := range handlers {
		r.pull(tag, h)
		r.pull(digest, h)
		r.status(tag, h)
		r.status(adopted, h)
	}
	r.list()
	if _, err := r.Images().ImageFsInfo(r.ctx, &cri.ImageFsInfoRequest{}); err != nil {
		t.Fatal(err)
	}
	wantNothingWritten(t, "asking and pulling what is there", before, r.state())
	if err := r.Restart(r.ctx, nil); err != nil {
		t.Fatal(err)
	}
	wantNothingWritten(t, "a restart", before, r.state())
	r.crash(nil)
	wantNothingWritten(t, "a crash", before, r.state())
}

// withoutSpec makes images comparable with those of stock, which says nothing in their spec.
func withoutSpec(all map[string]*cri.Image) map[string]*cri.Image {
	m := make(map[string]*cri.Image)
	for id, i := range all {
		i = proto.CloneOf(i)
		i.Spec = nil
		slices.Sort(i.RepoTags)
		slices.Sort(i.RepoDigests)
		m[id] = i
	}
	return m
}

// TestUpgradeAndRollback starts ours on stock's root and stock on ours, without a registry: each lists and runs what the other left.
func TestUpgradeAndRollback(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Binary: node.Stock, Handlers: append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...)})
	theirs, ours := images.Options{Version: "stocks", User: "0"}, images.Options{Version: "ours"}
	tag, _ := r.push("app:stock", theirs, images.HostPlatform(), foreign)
	plain, _ := r.pushImage("plain:stock", testkit.App(t, images.Options{Version: "plain"}))
	_, byDigest := r.push("digest:stock", images.Options{Version: "digest"}, foreign, images.HostPlatform())
	for _, ref := range []string{tag, plain, byDigest} {
		r.pull(ref, "")
	}
	r.wantRun("", tag, theirs.Line(0))
	r.wantRun(second, tag, theirs.Line(0)) // stock unpacks it there on the way
	stock := withoutSpec(r.images())
	start := func(binary string) {
		t.Helper()
		r.reg.Reset()
		r.reg.Down()
		r.crash(func(o *node.Options) { o.Binary = binary })
	}

	start(node.Ours)
	wantSameImages(t, "after the upgrade", stock, withoutSpec(r.images()))
	for _, h := range []string{"runc", second} {
		if r.status(tag, h) == nil {
			t.Errorf("handler %s: what stock had unpacked is not there", h)
		}
		r.wantRun(h, tag, theirs.Line(0))
	}
	r.wantRun("", plain, line(images.Options{Version: "plain"}, images.HostPlatform()))
	r.wantRun("", byDigest, line(images.Options{Version: "digest"}, images.HostPlatform()))
	// Layers are kept, so that this one can be had for native too.
	r.wantRun(second, plain, line(images.Options{Version: "plain"}, images.HostPlatform()))
	if img := r.status(tag, "foreign"); img != nil {
		t.Errorf("the other platform, which stock does not know, is there: %v", img)
	}

	if err := r.reg.Up(); err != nil {
		t.Fatal(err)
	}
	fresh, freshDigest := r.push("app:ours", ours, foreign, images.HostPlatform())
	var id string
	for _, h := range []string{"foreign", "", second} {
		got := r.pull(fresh, h)
		if h == "" {
			id = got
		}
	}
	listed := r.images()

	start(node.Stock)
	img := r.status(fresh, "")
	if img.GetId() != id || !slices.Equal(img.GetRepoTags(), []string{fresh}) || !slices.Equal(img.GetRepoDigests(), []string{freshDigest}) {
		t.Errorf("after the rollback stock says of the image: %v", img)
	}
	for ref, opts := range map[string]images.Options{fresh: ours, tag: theirs} {
		r.wantRun("", ref, opts.Line(0))
		r.wantRun(second, ref, opts.Line(0))
	}

	start(node.Ours)
	wantSameImages(t, "after the second upgrade", listed, r.images())
	for h, platform := range map[string]string{"": images.HostPlatform(), second: images.HostPlatform(), "foreign": foreign} {
		r.wantRun(h, fresh, line(ours, platform))
	}

	// What stock removes and pulls anew is what ours finds.
	start(node.Stock)
	if err := r.reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.remove(tag, "")
	newer := images.Options{Version: "newer"}
	_, newerDigest := r.push("app:ours", newer, images.HostPlatform(), foreign)
	newerID := r.pull(fresh, "")
	start(node.Ours)
	for _, h := range []string{"", "runc", second} {
		if img := r.status(tag, h); img != nil {
			t.Errorf("handler %q: an image that stock removed is there: %v", h, img)
		}
	}
	if got := r.status(fresh, "runc"); got.GetId() != newerID || !slices.Equal(got.GetRepoDigests(), []string{newerDigest}) {
		t.Errorf("the tag that stock pulled anew is %v, not %s", got, newerID)
	}
	r.wantRun("", fresh, newer.Line(0))
}

// TestOtherTools changes images with ctr while containerd runs: CRI's view follows within a second.
func TestOtherTools(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...)})
	r.removePod(r.pod(""))
	r.removePod(r.pod(second))
	r.collect()
	before := r.state()
	opts := images.Options{}
	tag, digest := r.push("app:v1", opts, images.HostPlatform(), foreign)
	ctr := func(args ...string) {
		t.Helper()
		if _, err := r.Ctr(r.ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	noticed := func(ref, handler, id string) {
		t.Helper()
		what := fmt.Sprintf("ImageStatus %s for handler %s says %q", ref, handler, id)
		testkit.EventuallyIn(t, time.Second, what, func(context.Context) (bool, error) {
			img, err := r.ImageStatus(r.ctx, ref, handler)
			return img.GetId() == id, err
		})
	}

	// Exported from here, and removed.
	id := r.pull(tag, "")
	archive := r.Path("app.tar")
	ctr("images", "export", "--local", "--platform", images.HostPlatform(), archive, tag)
	r.remove(tag, "")
	r.wantState("after the removal", before)
	r.reg.Reset()
	r.reg.Down()

	ctr("images", "import", archive)
	noticed(tag, "runc", id)
	r.wantNames(id, []string{tag}, nil)
	r.wantRun("", tag, opts.Line(0))
	ctr("images", "tag", tag, r.reg.Ref("app:mine"))
	noticed(r.reg.Ref("app:mine"), "runc", id)
	ctr("images", "rm", tag)
	noticed(tag, "runc", "")
	noticed(id, "runc", id)
	ctr("images", "rm", r.reg.Ref("app:mine"))
	noticed(id, "runc", "")
	r.eventually("everything is freed", func() bool {
		r.collect()
		return node.Diff(before, r.state()) == ""
	})

	// Imported without being unpacked: it is unpacked where stock would run it.
	ctr("images", "import", "--no-unpack", archive)
	noticed(tag, "runc", id)
	r.wantRun("", tag, opts.Line(0))
	r.wantRun(second, tag, opts.Line(0))
	r.remove(tag, "")
	r.wantState("after the removal of what was imported", before)

	if err := r.reg.Up(); err != nil {
		t.Fatal(err)
	}
	ctr("images", "pull", "--local", "--plain-http", tag)
	noticed(tag, "runc", id)
	r.reg.Reset()
	r.wantRun("", tag, opts.Line(0))
	r.wantRun(second, tag, opts.Line(0))
	r.offline("running what ctr had pulled")
	for _, name := range []string{tag, digest} {
		ctr("images", "rm", name)
	}
	r.eventually("everything is freed", func() bool {
		r.collect()
		return node.Diff(before, r.state()) == ""
	})

	// What imagepin has pulled is taken from under it.
	for _, h := range []string{"", second, "foreign"} {
		r.pull(tag, h)
	}
	ctr("images", "rm", tag)
	noticed(tag, "runc", "")
	noticed(tag, second, "")
	r.wantNames(id, nil, []string{digest})
	if r.status(tag, "foreign") == nil {
		t.Error("the other platform, whose records are still there, is gone")
	}
	r.wantRun("", digest, opts.Line(0))
	for _, i := range r.list() {
		r.remove(i.Id, "")
	}
	r.wantState("in the end", before)
}

// TestDisabled switches imagepin off: what is served is containerd's own CRI.
func TestDisabled(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{
		DisabledPlugins: []string{"io.containerd.imagepin.v1.images"},
		Handlers:        []node.Handler{{Name: "foreign", Platform: foreign}},
	})
	opts := images.Options{}
	tag, _ := r.push("app:v1", opts, images.HostPlatform(), foreign)
	id := r.pull(tag, "foreign")
	r.wantRun("foreign", id, opts.Line(0)) // the node's platform, as stock has it
	if spec := r.list()[id].GetSpec(); spec != nil {
		t.Errorf("the image has a spec, as only imagepin gives it: %v", spec)
	}
	for name, i := range r.state().Images {
		for label := range maps.Keys(i.Labels) {
			if strings.HasPrefix(label, "io.imagepin.") {
				t.Errorf("record %s has label %s", name, label)
			}
		}
	}
	if !strings.Contains(r.Logs(), "imagepin is disabled") {
		t.Error("the log does not say that imagepin is disabled")
	}
	// Switched on again it takes over what is there.
	r.reg.Down()
	r.crash(func(o *node.Options) { o.DisabledPlugins = nil })
	if got := r.status(tag, "runc").GetId(); got != id {
		t.Errorf("after it is switched on the image is %q, not %s", got, id)
	}
	if img := r.status(tag, "foreign"); img != nil {
		t.Errorf("after it is switched on the other platform is there: %v", img)
	}
}
