package remove

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestHandlersComeAndGo starts containerd without the handlers that images were pulled for, and with them again: what was there for
// them alone is gone and its space is freed, and the node's own images are not touched by it. There is no registry meanwhile.
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
		t.Errorf("without the other handlers the tag means %q, not %s", got, id)
	}
	if tags := r.Listed()[theirs].GetRepoTags(); len(tags) > 0 {
		t.Errorf("without its handler the other platform's image is listed as %q", tags)
	}
	r.WantRun("", tag, opts.Line(0))
	r.Eventually("what was there for the other handlers is freed", func() bool {
		s := r.MustState()
		_, theirRecord := s.Images[node.Namespace+"/"+theirs]
		_, theirConfig := s.Content[node.Namespace+"/"+theirs]
		return len(s.SnapshotsOf("native")) == 0 && !theirRecord && !theirConfig
	})
	freed := r.MustState()
	for name, i := range freed.Images {
		for label, value := range i.Labels {
			if strings.Contains(value, `"snapshotter":"native"`) || strings.Contains(value, testkit.Foreign) {
				t.Errorf("record %s has %s=%s", name, label, value)
			}
		}
	}

	r.KillAndRestart(func(o *node.Options) { o.Handlers = handlers })
	for h, want := range map[string]string{"runc": id, testkit.Second: "", "foreign": ""} {
		if got := r.MustStatus(tag, h).GetId(); got != want {
			t.Errorf("with its handler back the tag means %q for %s, not %q", got, h, want)
		}
	}
	if d := node.Diff(freed, r.MustState()); d != "" {
		t.Errorf("something was unpacked or fetched for handlers that no pod has asked for:\n%s", d)
	}
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.WantRun(testkit.Second, tag, opts.Line(0)) // by digest, with the node's own credentials
	r.MustPull(tag, "foreign")
	r.WantRun("foreign", tag, testkit.Line(opts, testkit.Foreign))
}

// TestDefaultSnapshotterChanges starts containerd with another default snapshotter: images whose layers are here are unpacked in it.
func TestDefaultSnapshotterChanges(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	opts := images.Options{}
	tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	id := r.MustPull(tag, "")
	r.MustRemovePod(r.MustPod(""))
	r.Reg.Reset()
	r.Reg.Down()
	for _, snapshotter := range []string{"native", "overlayfs"} {
		r.KillAndRestart(func(o *node.Options) { o.Snapshotter = snapshotter })
		r.Eventually("the images are unpacked in "+snapshotter, func() bool {
			all := r.ImagesByID()
			for _, i := range all {
				if len(i.RepoTags) != 1 || len(i.RepoDigests) != 1 {
					return false
				}
			}
			return len(all) == 2
		})
		r.WantNames(id, []string{tag}, []string{digest})
		r.WantRun("", tag, opts.Line(0))
	}
	r.WantNoRequests("images that are unpacked elsewhere")
	r.Eventually("the other snapshotter's are freed", func() bool { return len(r.MustState().SnapshotsOf("native")) == 0 })
}

// TestTagMovedByCtr moves a tag by other means than CRI: CRI's view follows, the record stays as it was set, and the older image goes
// on by its digest, and under the tag where another snapshotter was given it.
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
	testkit.EventuallyIn(t, time.Second, "the tag means the newer image", func(ctx context.Context) (bool, error) {
		img, err := r.ImageStatus(ctx, tag, "runc")
		return img != nil && img.Id != id, err
	})
	img, err := r.Client().ImageService().Get(testkit.NSContext(r.Ctx), tag)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Reg.Ref("app@" + img.Target.Digest.String()); got != newer {
		t.Errorf("the tag's record targets %s, not %s, as ctr had set it", got, newer)
	}
	r.WantNames(id, nil, []string{first})
	r.WantRun("", tag, v2.Line(0))
	r.WantRun("", first, v1.Line(0))
	r.WantRun(testkit.Second, tag, v2.Line(0))
	for image := range r.Listed() {
		r.MustRemove(image, "")
	}
	r.MustRemove(r.Options().SandboxImage, "")
	r.WantState("in the end", before)
}

// TestTagAndDigestOfCtr removes the record of an image's digest by ctr, which carries its keys, and then that of its tag; and pulls
// through CRI what ctr had pulled, before and after its tag moves.
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
	testkit.EventuallyIn(t, time.Second, "the image is listed with its tag alone", func(context.Context) (bool, error) {
		img := r.Listed()[id]
		return slices.Equal(img.GetRepoTags(), []string{tag}) && len(img.GetRepoDigests()) == 0, nil
	})
	r.Reg.Down()
	r.KillAndRestart(nil)
	for _, h := range []string{"runc", testkit.Second} {
		if got := r.MustStatus(tag, h).GetId(); got != id {
			t.Errorf("handler %s: the tag, whose record is there, means %q, not %s", h, got, id)
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
	r.Eventually("what ctr pulled is there", func() bool { return r.MustStatus(tag, "runc").GetId() == id })
	r.MustPull(tag, "")
	r.WantNames(id, []string{tag}, []string{digest})
	v2 := images.Options{Version: "v2"}
	_, newer := r.Push("app:v1", v2, images.HostPlatform(), testkit.Foreign)
	newerID := r.MustPull(tag, "")
	r.WantNames(id, nil, []string{digest})
	r.WantNames(newerID, []string{tag}, []string{newer})
	// The tag's record has followed, or stock would run the old one.
	r.KillAndRestart(func(o *node.Options) { o.Binary = node.Stock })
	if got := r.MustStatus(tag, "").GetId(); got != newerID {
		t.Errorf("to stock the tag means %q, not %s", got, newerID)
	}
}

// TestTagWithoutThePlatform moves a tag to an image that the node's own platform has no part in. A pull for another target moves nothing of the
// default's, its own pull says so and leaves what it has; and so it stays over a restart where ctr moves the record of the tag. Stock loses the tag
// then.
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
	as := func(when string, recorded string) {
		t.Helper()
		if got := r.MustStatus(tag, "runc").GetId(); got != id {
			t.Errorf("%s: for the default target the tag means %q, not %s", when, got, id)
		}
		if got := record(); got != recorded {
			t.Errorf("%s: the tag's record targets %s, not %s", when, got, recorded)
		}
		r.WantRun("", tag, old.Line(0))
	}
	newID := r.MustPull(tag, "foreign")
	if newID == id || r.MustStatus(tag, "foreign").GetId() != newID {
		t.Errorf("for the other target the tag means %v after its pull gave %s", r.MustStatus(tag, "foreign"), newID)
	}
	as("pulled for another target", first)
	_, err := r.Pull(r.Ctx, tag, "")
	testkit.Failure{Name: "NoMatchingPlatform", Code: codes.NotFound}.Check(t, err, tag, testkit.TargetOf(""))
	as("its own pull failed", first)
	r.KillAndRestart(nil)
	as("restarted", first)

	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", "--platform", testkit.Foreign, tag); err != nil {
		t.Fatal(err)
	}
	if got := record(); got != second {
		t.Fatalf("ctr has moved the tag's record to %s", got)
	}
	r.KillAndRestart(nil)
	as("moved by ctr, and restarted", second)
	r.WantRun("foreign", tag, testkit.Line(newer, testkit.Foreign))

	r.KillAndRestart(func(o *node.Options) { o.Binary = node.Stock })
	if img := r.MustStatus(tag, ""); img != nil {
		t.Errorf("to stock, for which its record has no platform, the tag means %v", img)
	}
	if got := r.MustStatus(first, "").GetId(); got != id {
		t.Errorf("to stock the digest means %q, not %s", got, id)
	}
}
