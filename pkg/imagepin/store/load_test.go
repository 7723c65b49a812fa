package store_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

func TestLoad(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "p")
	e.pull(t, tag, a, nativeToo, 1, "")
	e.pull(t, tag, a, foreign, 2, "")
	e.pull(t, repo+":b", b, native, 3, "")
	want := e.keys()
	before := e.state(t)

	e.restart()
	wantEqual(t, "unaccounted records", e.load(t), nil)
	wantEqual(t, "keys", e.keys(), want)
	if !e.store.HasProof("p") {
		t.Error("the proof is missing")
	}
	if e.records.writes != 0 || lines(e.state(t)) != lines(before) {
		t.Errorf("Load wrote %d times, want 0, or changed the records", e.records.writes)
	}
	got, ok := e.store.Get(imagepin.Key{Ref: tag, Target: foreign})
	wanted := entries(tag, a, foreign, 2)[1]
	if !ok || !reflect.DeepEqual(got, wanted) {
		t.Errorf("got  %#v\nwant %#v", got, wanted)
	}
}

func TestLoadSkipsLostKeys(t *testing.T) {
	byDigest := func(i image) string { return repo + "@" + i.root.Digest.String() }
	for name, c := range map[string]struct {
		damage func(*testing.T, *env, image)
		lost   bool // the native key is lost
		both   bool // the key of the second snapshotter is lost too
	}{
		"no change":     {func(*testing.T, *env, image) {}, false, false},
		"manifest":      {func(t *testing.T, e *env, i image) { e.deleteBlob(t, i.amd64.Manifest.Digest) }, true, true},
		"configuration": {func(t *testing.T, e *env, i image) { e.deleteBlob(t, i.amd64.Config.Digest) }, true, true},
		"snapshot": {func(t *testing.T, e *env, i image) {
			if err := e.Snapshotter("first").Remove(e.ctx, i.amd64.ChainID.String()); err != nil {
				t.Fatal(err)
			}
		}, true, false},
		"snapshot that is not committed": {func(t *testing.T, e *env, i image) {
			sn := e.Snapshotter("first")
			if err := sn.Remove(e.ctx, i.amd64.ChainID.String()); err != nil {
				t.Fatal(err)
			}
			if _, err := sn.Prepare(e.ctx, i.amd64.ChainID.String(), ""); err != nil {
				t.Fatal(err)
			}
		}, true, false},
		"layer (can be discarded)": {func(t *testing.T, e *env, i image) { e.deleteBlob(t, i.amd64.Layer.Digest) }, false, false},
		"damaged label": {func(t *testing.T, e *env, i image) {
			e.label(t, byDigest(i), imagepin.KeyLabelName(imagepin.Key{Ref: tag, Target: native}), "{")
		}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			i := e.image("a")
			e.pull(t, tag, i, native, 0, "")
			e.pull(t, tag, i, nativeToo, 1, "")
			c.damage(t, e, i)
			e.restart()
			e.load(t)
			if _, ok := e.store.Get(imagepin.Key{Ref: tag, Target: native}); ok == c.lost {
				t.Errorf("native key: got ready %v, want %v", ok, !c.lost)
			}
			if _, ok := e.store.Get(imagepin.Key{Ref: tag, Target: nativeToo}); ok == c.both {
				t.Errorf("key of the second snapshotter: got ready %v, want %v", ok, !c.both)
			}
		})
	}
}

func (e *env) deleteBlob(t *testing.T, d digest.Digest) {
	t.Helper()
	if err := e.Content.Delete(e.ctx, d); err != nil {
		t.Fatal(err)
	}
}

func TestLoadSkipsTargetsWithoutHandler(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	removed := entries(tag, i, native, 0)[1]
	removed.Target.Snapshotter = "third"
	label, value, err := imagepin.EncodeKeyLabel(removed)
	if err != nil {
		t.Fatal(err)
	}
	e.label(t, removed.Record, label, value)
	e.restart()
	e.load(t)
	wantEqual(t, "keys", e.keys(), texts(keysOf(entries(tag, i, native, 0))...))
}

// TestLoadUsesLaterOfTwoLabels checks a key on two records, which a crash between the writes of a moving tag leaves.
func TestLoadUsesLaterOfTwoLabels(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	e.pull(t, tag, b, native, 1, "")
	old := entries(tag, a, native, 0)[1]
	label, value, err := imagepin.EncodeKeyLabel(old)
	if err != nil {
		t.Fatal(err)
	}
	e.label(t, old.Record, label, value)
	e.restart()
	e.load(t)
	if got, _ := e.store.Get(old.Key); got.Root.Digest != b.root.Digest {
		t.Errorf("tag: got digest %s, want %s", got.Root.Digest, b.root.Digest)
	}
	wantEqual(t, "keys on the old record", e.keyLabels(t, old.Record), texts(imagepin.Key{Ref: old.Record, Target: native}))
	e.remove(t, append(keysOf(entries(tag, b, native, 1)), entries(tag, a, native, 0)[0].Key)...)
	e.WantEmpty(t)
}

// TestLoadRemovesKeysOfDeletedTag checks that a start removes the key of a tag that was deleted meanwhile, as Sync
// does.
func TestLoadRemovesKeysOfDeletedTag(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, foreign, 1, "")
	e.delete(t, tag)
	e.restart()
	e.load(t)
	want := append(keysOf(entries(tag, i, foreign, 1)), imagepin.Key{Ref: repo + "@" + i.root.Digest.String(), Target: native})
	wantEqual(t, "keys", e.keys(), texts(want...))
	wantEqual(t, "keys on the record", e.keyLabels(t, want[2].Ref), texts(want[2]))
}

// TestLoadMovesImageID checks a kill before the write that moves the record of an image ID: another tool has pulled an index
// with the same configuration before, and the tag has moved to this one.
func TestLoadMovesImageID(t *testing.T) {
	e := newEnv(t)
	a := e.image("a")
	other := a
	other.root = e.blobs.Index(a.amd64.Manifest)
	e.pull(t, tag, a, native, 0, "")
	id := a.amd64.Config.Digest.String()
	before := e.state(t)
	e.move(t, id, other)
	e.restart()
	e.load(t)
	if after := e.state(t); lines(after) != lines(before) {
		t.Errorf("got\n%s\nwant\n%s", lines(after), lines(before))
	}
	e.wantSound(t)
}

// TestLoadKeepsMovedTag checks that a start does not move back a tag that another tool has moved, together with the record
// of the image ID, to an index with the same configuration.
func TestLoadKeepsMovedTag(t *testing.T) {
	e := newEnv(t)
	a := e.image("a")
	other := a
	other.root = e.blobs.Index(a.amd64.Manifest)
	e.pull(t, tag, a, native, 0, "")
	e.move(t, tag, other)
	e.move(t, a.amd64.Config.Digest.String(), other)
	e.restart()
	if got := e.load(t); !slices.Contains(got, tag) {
		t.Errorf("got unaccounted records %v, want %s", got, tag)
	}
	if img, err := e.Images.Get(e.ctx, tag); err != nil || img.Target.Digest != other.root.Digest {
		t.Errorf("tag: got %v and %v, want digest %s", img.Target.Digest, err, other.root.Digest)
	}
}

func TestLoadReturnsUnaccountedRecords(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	ctx, done := e.Lease(t)
	defer done()
	e.place(ctx, t, b, native)
	for _, name := range []string{repo + ":other", repo + "@" + b.root.Digest.String(), b.amd64.Config.Digest.String()} {
		if _, err := e.Images.Create(e.ctx, images.Image{Name: name, Target: b.root}); err != nil {
			t.Fatal(err)
		}
	}
	e.restart()
	wantEqual(t, "unaccounted records", e.load(t), []string{repo + ":other", repo + "@" + b.root.Digest.String(), b.amd64.Config.Digest.String()})

	// A tag that another tool moved is also unaccounted.
	e.move(t, tag, b)
	e.restart()
	if got := e.load(t); !slices.Contains(got, tag) {
		t.Errorf("got unaccounted records %v, want %s", got, tag)
	}
}

// TestLoadMovesTagBehindItsKeys checks that a start moves a tag whose record was written before the tag's keys. A pull that was
// killed by a version that moved the label of an adopted key first has left it. It is not taken for a tag that another
// tool moved, because adoption does not replace the keys of a later pull.
func TestLoadMovesTagBehindItsKeys(t *testing.T) {
	for name, c := range map[string]struct {
		// first and second are the times of the tag's keys, for two snapshotters, after the write of its record.
		first, second time.Duration
		moved         bool
	}{
		"keys after the record":                 {time.Hour, 2 * time.Hour, true},
		"keys before the record":                {-2 * time.Hour, -time.Hour, false},
		"a key before and one after the record": {-time.Hour, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			a, b := e.image("a"), e.image("b")
			at := func(d time.Duration) int { return int(time.Now().Add(d).Unix()) - when }
			e.pull(t, repo+":other", a, native, 0, "") // keeps a
			e.pull(t, tag, b, native, at(c.first), "")
			e.pull(t, tag, b, nativeToo, at(c.second), "")
			e.move(t, tag, a)
			e.restart()
			unaccounted, want := e.load(t), a
			if c.moved {
				want = b
			}
			if got := e.Records(t)[tag].Target.Digest; got != want.root.Digest || slices.Contains(unaccounted, tag) == c.moved {
				t.Errorf("got target %s and unaccounted records %v, want %s", got, unaccounted, want.root.Digest)
			}
			e.wantSound(t)
		})
	}
}

// TestLoadWithUnavailableSnapshotter checks that a failing snapshotter does not affect the images of others.
func TestLoadWithUnavailableSnapshotter(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, nativeToo, 1, "")
	e.restart()
	e.store.Configuration().Snapshotter = func(name string) snapshots.Snapshotter {
		if name == "first" {
			return ctdtest.Snapshots{Snapshotter: e.Snapshotter(name), Before: ctdtest.Fail("Walk", errors.New("unavailable"))}
		}
		return e.Snapshotter(name)
	}
	e.load(t)
	wantEqual(t, "keys", e.keys(), texts(keysOf(entries(tag, i, nativeToo, 1))...))
}
