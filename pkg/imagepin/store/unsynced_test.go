package store_test

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
)

// TestUnsynced checks which records are unsynced. A record is unsynced after a write, until it is marked as synced,
// changed again, or removed.
func TestUnsynced(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	e.pull(t, tag, a, foreign, 0, "")
	want := func(when string, i image, at []string) {
		t.Helper()
		got := e.store.Unsynced(entries(tag, i, native, 0)[1])
		slices.Sort(got)
		slices.Sort(at)
		if !slices.Equal(got, at) {
			t.Errorf("%s: got unsynced records %q, want %q", when, got, at)
		}
	}
	id, byDigest := a.amd64.Config.Digest.String(), repo+"@"+a.root.Digest.String()
	want("after the write", a, []string{tag, byDigest, id})
	e.store.MarkSynced(byDigest)
	want("after one is marked as synced", a, []string{tag, id})
	if got := e.store.Unsynced(entries(tag, a, foreign, 0)[1]); slices.Contains(got, tag) {
		t.Errorf("another platform: got unsynced records %q, want none of the tag", got)
	}
	e.pull(t, tag, a, nativeToo, 1, "")
	want("after a change of labels", a, []string{tag, id})
	if _, err := e.Images.Update(e.ctx, images.Image{Name: tag, Target: b.root}, "target"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.store.Sync(e.ctx, tag); err != nil {
		t.Fatal(err)
	}
	want("after another tool moved the tag", a, []string{id})
	if err := e.Images.Delete(e.ctx, id); err != nil {
		t.Fatal(err)
	}
	if _, err := e.store.Sync(e.ctx, id); err != nil {
		t.Fatal(err)
	}
	want("after another tool removed the record of the ID and Sync wrote it again", a, []string{id})
	if got := e.Records(t)[tag].Target.Digest; got != b.root.Digest {
		t.Errorf("tag: got digest %s, want %s", got, b.root.Digest)
	}
	e.store.MarkUnsynced(images.Image{Name: tag, Target: a.root}, entries(tag, a, native, 0)...)
	want("after MarkUnsynced", a, []string{tag, id})
	e.load(t)
	want("after another listing, where the tag has another target", a, []string{id})
}

// TestReleaseUnpacked checks that a snapshot of a failed pull is released, but not a snapshot that a key needs.
func TestReleaseUnpacked(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	ctx, done := e.Lease(t)
	e.place(ctx, t, i, nativeToo)
	done()
	for range 2 {
		for _, snapshotter := range []string{"first", "second"} {
			if err := e.store.ReleaseUnpacked(e.ctx, i.amd64.Config.Digest, snapshotter); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.Collect(t)
	if !e.HasSnapshot(t, "first", i.amd64.ChainID) || e.HasSnapshot(t, "second", i.amd64.ChainID) {
		t.Error("the node does not have exactly the snapshots of the keys")
	}
	e.wantSound(t)
	missing := e.image("b")
	if err := e.store.ReleaseUnpacked(e.ctx, missing.amd64.Config.Digest, "first"); err != nil {
		t.Errorf("releasing a missing image: %v", err)
	}
}
