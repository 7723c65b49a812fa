package integration

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
	handlers := append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...)
	r := newRig(t, node.Options{DiscardUnpackedLayers: true, Handlers: handlers})
	opts := images.Options{}
	tag, digest := r.push("app:v1", opts, images.HostPlatform(), foreign)
	id := r.pull(tag, "")
	r.pull(tag, second)
	theirs := r.pull(tag, "foreign")
	for _, h := range []string{"", second, "foreign"} {
		r.removePod(r.pod(h))
	}
	r.collect()
	r.reg.Reset()
	r.reg.Down()

	r.crash(func(o *node.Options) { o.Handlers = nil })
	r.wantNames(id, []string{tag}, []string{digest})
	if got := r.status(tag, "").GetId(); got != id {
		t.Errorf("without the other handlers the tag means %q, not %s", got, id)
	}
	if tags := r.list()[theirs].GetRepoTags(); len(tags) > 0 {
		t.Errorf("without its handler the other platform's image is listed as %q", tags)
	}
	r.wantRun("", tag, opts.Line(0))
	r.eventually("what was there for the other handlers is freed", func() bool {
		s := r.state()
		_, theirRecord := s.Images[node.Namespace+"/"+theirs]
		_, theirConfig := s.Content[node.Namespace+"/"+theirs]
		return len(s.SnapshotsOf("native")) == 0 && !theirRecord && !theirConfig
	})
	freed := r.state()
	for name, i := range freed.Images {
		for label, value := range i.Labels {
			if strings.Contains(value, `"snapshotter":"native"`) || strings.Contains(value, foreign) {
				t.Errorf("record %s has %s=%s", name, label, value)
			}
		}
	}

	r.crash(func(o *node.Options) { o.Handlers = handlers })
	for h, want := range map[string]string{"runc": id, second: "", "foreign": ""} {
		if got := r.status(tag, h).GetId(); got != want {
			t.Errorf("with its handler back the tag means %q for %s, not %q", got, h, want)
		}
	}
	if d := node.Diff(freed, r.state()); d != "" {
		t.Errorf("something was unpacked or fetched for handlers that no pod has asked for:\n%s", d)
	}
	if err := r.reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.wantRun(second, tag, opts.Line(0)) // by digest, with the node's own credentials
	r.pull(tag, "foreign")
	r.wantRun("foreign", tag, line(opts, foreign))
}

// TestDefaultSnapshotterChanges starts containerd with another default snapshotter: images whose layers are here are unpacked in it.
func TestDefaultSnapshotterChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	opts := images.Options{}
	tag, digest := r.push("app:v1", opts, images.HostPlatform(), foreign)
	id := r.pull(tag, "")
	r.removePod(r.pod(""))
	r.reg.Reset()
	r.reg.Down()
	for _, snapshotter := range []string{"native", "overlayfs"} {
		r.crash(func(o *node.Options) { o.Snapshotter = snapshotter })
		r.eventually("the images are unpacked in "+snapshotter, func() bool {
			all := r.images()
			for _, i := range all {
				if len(i.RepoTags) != 1 || len(i.RepoDigests) != 1 {
					return false
				}
			}
			return len(all) == 2
		})
		r.wantNames(id, []string{tag}, []string{digest})
		r.wantRun("", tag, opts.Line(0))
	}
	r.offline("images that are unpacked elsewhere")
	r.eventually("the other snapshotter's are freed", func() bool { return len(r.state().SnapshotsOf("native")) == 0 })
}

// TestTagMovedByCtr moves a tag by other means than CRI: CRI's view follows, the record stays as it was set, and the older image goes
// on by its digest, and under the tag where another snapshotter was given it.
func TestTagMovedByCtr(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: onNative})
	v1, v2 := images.Options{Version: "v1"}, images.Options{Version: "v2"}
	before := r.state()
	tag, first := r.push("app:latest", v1, images.HostPlatform(), foreign)
	id := r.pull(tag, "")
	_, newer := r.push("app:latest", v2, images.HostPlatform(), foreign)
	if _, err := r.Ctr(r.ctx, "images", "pull", "--local", "--plain-http", tag); err != nil {
		t.Fatal(err)
	}
	testkit.EventuallyIn(t, time.Second, "the tag means the newer image", func(ctx context.Context) (bool, error) {
		img, err := r.ImageStatus(ctx, tag, "runc")
		return img != nil && img.Id != id, err
	})
	img, err := r.Client().ImageService().Get(nsctx(r.ctx), tag)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.reg.Ref("app@" + img.Target.Digest.String()); got != newer {
		t.Errorf("the tag's record targets %s, not %s, as ctr had set it", got, newer)
	}
	r.wantNames(id, nil, []string{first})
	r.wantRun("", tag, v2.Line(0))
	r.wantRun("", first, v1.Line(0))
	r.wantRun(second, tag, v2.Line(0))
	for image := range r.list() {
		r.remove(image, "")
	}
	r.remove(r.Options().SandboxImage, "")
	r.wantState("in the end", before)
}

// TestTagAndDigestOfCtr removes the record of an image's digest by ctr, which carries its keys, and then that of its tag; and pulls
// through CRI what ctr had pulled, before and after its tag moves.
func TestTagAndDigestOfCtr(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: onNative})
	opts := images.Options{}
	tag, digest := r.push("app:v1", opts, images.HostPlatform(), foreign)
	r.removePod(r.pod(""))
	r.removePod(r.pod(second))
	r.collect()
	before := r.state()
	id := r.pull(tag, "")
	r.pull(tag, second)
	if _, err := r.Ctr(r.ctx, "images", "rm", "--sync", digest); err != nil {
		t.Fatal(err)
	}
	testkit.EventuallyIn(t, time.Second, "the image is listed with its tag alone", func(context.Context) (bool, error) {
		img := r.list()[id]
		return slices.Equal(img.GetRepoTags(), []string{tag}) && len(img.GetRepoDigests()) == 0, nil
	})
	r.reg.Down()
	r.crash(nil)
	for _, h := range []string{"runc", second} {
		if got := r.status(tag, h).GetId(); got != id {
			t.Errorf("handler %s: the tag, whose record is there, means %q, not %s", h, got, id)
		}
		r.wantRun(h, tag, opts.Line(0))
	}
	if err := r.reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.pull(tag, "")
	r.wantNames(id, []string{tag}, []string{digest})
	r.remove(tag, "")
	r.wantState("after the removal", before)

	if _, err := r.Ctr(r.ctx, "images", "pull", "--local", "--plain-http", tag); err != nil {
		t.Fatal(err)
	}
	r.eventually("what ctr pulled is there", func() bool { return r.status(tag, "runc").GetId() == id })
	r.pull(tag, "")
	r.wantNames(id, []string{tag}, []string{digest})
	v2 := images.Options{Version: "v2"}
	_, newer := r.push("app:v1", v2, images.HostPlatform(), foreign)
	newerID := r.pull(tag, "")
	r.wantNames(id, nil, []string{digest})
	r.wantNames(newerID, []string{tag}, []string{newer})
	// The tag's record has followed, or stock would run the old one.
	r.crash(func(o *node.Options) { o.Binary = node.Stock })
	if got := r.status(tag, "").GetId(); got != newerID {
		t.Errorf("to stock the tag means %q, not %s", got, newerID)
	}
}

// TestTagWithoutThePlatform moves a tag to an image that the node's own platform has no part in. A pull for another target moves nothing of the
// default's, its own pull says so and leaves what it has; and so it stays over a restart where ctr moves the record of the tag. Stock loses the tag
// then.
func TestTagWithoutThePlatform(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: foreign}}})
	old := images.Options{}
	tag, first := r.push("app:v1", old, images.HostPlatform(), foreign)
	id := r.pull(tag, "")
	r.pull(tag, "foreign")
	newer := images.Options{Version: "newer"}
	_, second := r.push("app:v1", newer, foreign)
	record := func() string {
		t.Helper()
		img, err := r.Client().ImageService().Get(nsctx(r.ctx), tag)
		if err != nil {
			t.Fatal(err)
		}
		return r.reg.Ref("app@" + img.Target.Digest.String())
	}
	as := func(when string, recorded string) {
		t.Helper()
		if got := r.status(tag, "runc").GetId(); got != id {
			t.Errorf("%s: for the default target the tag means %q, not %s", when, got, id)
		}
		if got := record(); got != recorded {
			t.Errorf("%s: the tag's record targets %s, not %s", when, got, recorded)
		}
		r.wantRun("", tag, old.Line(0))
	}
	newID := r.pull(tag, "foreign")
	if newID == id || r.status(tag, "foreign").GetId() != newID {
		t.Errorf("for the other target the tag means %v after its pull gave %s", r.status(tag, "foreign"), newID)
	}
	as("pulled for another target", first)
	_, err := r.Pull(r.ctx, tag, "")
	failure{name: "NoMatchingPlatform", code: codes.NotFound}.check(t, err, tag, targetOf(""))
	as("its own pull failed", first)
	r.crash(nil)
	as("restarted", first)

	if _, err := r.Ctr(r.ctx, "images", "pull", "--local", "--plain-http", "--platform", foreign, tag); err != nil {
		t.Fatal(err)
	}
	if got := record(); got != second {
		t.Fatalf("ctr has moved the tag's record to %s", got)
	}
	r.crash(nil)
	as("moved by ctr, and restarted", second)
	r.wantRun("foreign", tag, line(newer, foreign))

	r.crash(func(o *node.Options) { o.Binary = node.Stock })
	if img := r.status(tag, ""); img != nil {
		t.Errorf("to stock, for which its record has no platform, the tag means %v", img)
	}
	if got := r.status(first, "").GetId(); got != id {
		t.Errorf("to stock the digest means %q, not %s", got, id)
	}
}
