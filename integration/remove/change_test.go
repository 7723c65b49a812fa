package remove

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestHandlersComeAndGo checks that the images of removed handlers stay, and run without a registry when the handlers are back.
func TestHandlersComeAndGo(t *testing.T) {
	t.Parallel()
	handlers := append([]node.Handler{{Name: "foreign", Platform: testkit.Foreign}}, testkit.OnNative...)
	r := testkit.NewRig(t, node.Options{DiscardUnpackedLayers: true, Handlers: handlers})
	opts := images.Options{}
	tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	id := r.MustPull(tag, "")
	r.MustPull(tag, testkit.Second)
	theirs := r.MustPull(tag, "foreign")
	for _, h := range []string{"", testkit.Second, "foreign"} {
		r.MustRemovePod(r.MustPod(h))
	}
	r.Collect()
	r.Reg.Reset()
	r.Reg.Down()

	r.KillAndRestart(func(o *node.Options) { o.Handlers = nil })
	r.WantNames(id, []string{tag}, []string{digest})
	if got := r.MustStatus(tag, "").GetId(); got != id {
		t.Errorf("without the other handlers: ImageStatus of the tag returned %q, want %s", got, id)
	}
	r.WantRun("", tag, opts.Line(0))
	r.Collect()
	kept := r.MustState()
	if _, ok := kept.Images[node.Namespace+"/"+theirs]; !ok || len(kept.SnapshotsOf("native")) == 0 {
		t.Errorf("the image of a removed handler is gone: record %t, %d snapshots", ok, len(kept.SnapshotsOf("native")))
	}

	r.KillAndRestart(func(o *node.Options) { o.Handlers = handlers })
	for h, want := range map[string]string{"runc": id, testkit.Second: id, "foreign": theirs} {
		if got := r.MustStatus(tag, h).GetId(); got != want {
			t.Errorf("with the handlers back: ImageStatus of the tag returned %q for handler %s, want %q", got, h, want)
		}
	}
	r.WantRun(testkit.Second, tag, opts.Line(0))
	r.WantRun("foreign", tag, testkit.Line(opts, testkit.Foreign))
}

// TestTagMovedByCtr checks that the CRI follows a tag that ctr moves, that the record of the tag keeps the target that
// ctr set, and that the older image stays available by digest.
func TestTagMovedByCtr(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	v1, v2 := images.Options{Version: "v1"}, images.Options{Version: "v2"}
	before := r.MustState()
	tag, first := r.Push("app:latest", v1, images.HostPlatform(), testkit.Foreign)
	id := r.MustPull(tag, "")
	_, newer := r.Push("app:latest", v2, images.HostPlatform(), testkit.Foreign)
	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", tag); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "ImageStatus of the tag returns the newer image", func(ctx context.Context) (bool, error) {
		img, err := r.ImageStatus(ctx, tag, "runc")
		return img != nil && img.Id != id, err
	})
	img, err := r.Client().ImageService().Get(testkit.NSContext(r.Ctx), tag)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Reg.Ref("app@" + img.Target.Digest.String()); got != newer {
		t.Errorf("the record of the tag targets %s, want %s as set by ctr", got, newer)
	}
	r.WantNames(id, nil, []string{first})
	r.WantRun("", tag, v2.Line(0))
	r.WantRun("", first, v1.Line(0))
	r.WantRun(testkit.Second, tag, v2.Line(0))
	for image := range r.Listed() {
		r.MustRemove(image, "")
	}
	r.MustRemove(r.Options().SandboxImage, "")
	r.WantState("at the end", before)
}

// TestTagAndDigestOfCtr checks that an image stays available by tag after ctr removes the record of its digest, which
// carries its keys. It also pulls through the CRI what ctr has pulled, before and after the tag moves.
func TestTagAndDigestOfCtr(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	opts := images.Options{}
	tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	r.MustRemovePod(r.MustPod(""))
	r.MustRemovePod(r.MustPod(testkit.Second))
	r.Collect()
	before := r.MustState()
	id := r.MustPull(tag, "")
	r.MustPull(tag, testkit.Second)
	if _, err := r.Ctr(r.Ctx, "images", "rm", "--sync", digest); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the image is listed with its tag only", func(context.Context) (bool, error) {
		img := r.Listed()[id]
		return slices.Equal(img.GetRepoTags(), []string{tag}) && len(img.GetRepoDigests()) == 0, nil
	})
	r.Reg.Down()
	r.KillAndRestart(nil)
	for _, h := range []string{"runc", testkit.Second} {
		if got := r.MustStatus(tag, h).GetId(); got != id {
			t.Errorf("handler %s: ImageStatus of the tag, which has a record, returned %q, want %s", h, got, id)
		}
		r.WantRun(h, tag, opts.Line(0))
	}
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.MustPull(tag, "")
	r.WantNames(id, []string{tag}, []string{digest})
	r.MustRemove(tag, "")
	r.WantState("after the removal", before)

	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", tag); err != nil {
		t.Fatal(err)
	}
	r.Eventually("the image that ctr pulled is available", func() bool { return r.MustStatus(tag, "runc").GetId() == id })
	r.MustPull(tag, "")
	r.WantNames(id, []string{tag}, []string{digest})
	v2 := images.Options{Version: "v2"}
	_, newer := r.Push("app:v1", v2, images.HostPlatform(), testkit.Foreign)
	newerID := r.MustPull(tag, "")
	r.WantNames(id, nil, []string{digest})
	r.WantNames(newerID, []string{tag}, []string{newer})
	// The record of the tag must have moved, or stock containerd would run the older image.
	r.KillAndRestart(func(o *node.Options) { o.Binary = node.Stock })
	if got := r.MustStatus(tag, "").GetId(); got != newerID {
		t.Errorf("stock containerd: ImageStatus of the tag returned %q, want %s", got, newerID)
	}
}

// TestTagWithoutThePlatform moves a tag to an image without a manifest for the node's platform. The default target
// keeps the older image after a pull for another target, after its own pull fails, and after ctr moves the record of
// the tag and containerd restarts. Stock containerd then no longer has the tag.
func TestTagWithoutThePlatform(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}})
	old := images.Options{}
	tag, first := r.Push("app:v1", old, images.HostPlatform(), testkit.Foreign)
	id := r.MustPull(tag, "")
	r.MustPull(tag, "foreign")
	newer := images.Options{Version: "newer"}
	_, second := r.Push("app:v1", newer, testkit.Foreign)
	record := func() string {
		t.Helper()
		img, err := r.Client().ImageService().Get(testkit.NSContext(r.Ctx), tag)
		if err != nil {
			t.Fatal(err)
		}
		return r.Reg.Ref("app@" + img.Target.Digest.String())
	}
	wantOld := func(when string, recorded string) {
		t.Helper()
		if got := r.MustStatus(tag, "runc").GetId(); got != id {
			t.Errorf("%s: ImageStatus of the tag returned %q for the default target, want %s", when, got, id)
		}
		if got := record(); got != recorded {
			t.Errorf("%s: the record of the tag targets %s, want %s", when, got, recorded)
		}
		r.WantRun("", tag, old.Line(0))
	}
	newID := r.MustPull(tag, "foreign")
	if newID == id || r.MustStatus(tag, "foreign").GetId() != newID {
		t.Errorf("ImageStatus of the tag returned %v for the other target, after its pull returned %s", r.MustStatus(tag, "foreign"), newID)
	}
	wantOld("after a pull for another target", first)
	_, err := r.Pull(r.Ctx, tag, "")
	testkit.Failure{Name: "NoMatchingPlatform", Code: codes.NotFound}.Check(t, err, tag, testkit.TargetOf(""))
	wantOld("after its own pull failed", first)
	r.KillAndRestart(nil)
	wantOld("after a restart", first)

	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", "--platform", testkit.Foreign, tag); err != nil {
		t.Fatal(err)
	}
	if got := record(); got != second {
		t.Fatalf("ctr moved the record of the tag to %s, want %s", got, second)
	}
	r.KillAndRestart(nil)
	wantOld("after ctr moved the tag and a restart", second)
	r.WantRun("foreign", tag, testkit.Line(newer, testkit.Foreign))

	r.KillAndRestart(func(o *node.Options) { o.Binary = node.Stock })
	if img := r.MustStatus(tag, ""); img != nil {
		t.Errorf("stock containerd: ImageStatus of the tag, whose record lacks the platform, returned %v", img)
	}
	if got := r.MustStatus(first, "").GetId(); got != id {
		t.Errorf("stock containerd: ImageStatus of the digest returned %q, want %s", got, id)
	}
}
