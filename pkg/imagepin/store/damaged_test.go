package store_test

import (
	"os"
	"slices"
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// damagedEnv has an image that was pulled for two snapshotters, and whose snapshot in the second one is gone.
func damagedEnv(t *testing.T) (*env, image, []imagepin.Entry) {
	t.Helper()
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, nativeToo, 0, "")
	e.removeSnapshot(t, i, nativeToo)
	hidden, err := e.store.EvictSnapshot(e.ctx, "second", i.amd64.ChainID.String())
	if err != nil || len(hidden) != 2 {
		t.Fatalf("got %v, %v, want 2 keys without their snapshot", hidden, err)
	}
	return e, i, hidden
}

// wantDamaged checks which keys are damaged, and that none of them is in the index.
func (e *env) wantDamaged(t *testing.T, when string, want ...imagepin.Entry) {
	t.Helper()
	var got []imagepin.Key
	for _, d := range e.store.Damaged() {
		got = append(got, d.Key)
		if _, ready := e.store.Get(d.Key); ready {
			t.Errorf("%s: damaged key %s is in the index", when, d.Key)
		}
	}
	wantEqual(t, when+": damaged keys", texts(got...), texts(keysOf(want)...))
}

// TestDamagedKeyStays marks keys as damaged. The mark is written once, survives a restart, and no start believes the keys
// before they are recorded again. An entry of the index is not marked.
func TestDamagedKeyStays(t *testing.T) {
	e, i, hidden := damagedEnv(t)
	e.wantDamaged(t, "after the eviction", hidden...)
	before := e.records.writes
	for _, k := range hidden {
		for range 2 {
			if kept, err := e.store.MarkDamaged(e.ctx, k, "its snapshot is gone"); err != nil || !kept {
				t.Errorf("%s: got kept %t, %v", k.Key, kept, err)
			}
		}
	}
	if n := e.records.writes - before; n != len(hidden) {
		t.Errorf("marking %d keys twice wrote %d times", len(hidden), n)
	}
	if kept, err := e.store.MarkDamaged(e.ctx, entries(tag, i, native, 0)[0], "nothing"); err != nil || kept {
		t.Errorf("a ready key: got kept %t, %v", kept, err)
	}

	ctx, done := e.Lease(t)
	defer done()
	e.place(ctx, t, i, nativeToo) // as an interrupted repair does
	e.restart()
	loaded := e.loaded(t)
	if len(loaded.Lost) != 2 || loaded.Lost[0].DamagedAt.IsZero() {
		t.Errorf("got lost keys %+v after a restart, want 2 with the time of their damage", loaded.Lost)
	}
	e.wantDamaged(t, "after a restart", hidden...)
	for _, name := range []string{tag, i.amd64.Config.Digest.String(), i.amd64.Config.Digest.Encoded()[:12]} {
		if found := e.store.FindDamaged(name); len(found) == 0 {
			t.Errorf("%s finds no damaged key", name)
		}
	}
	for _, k := range loaded.Lost {
		if restored, err := e.store.PutIf(ctx, k, k.Record); err != nil || !restored {
			t.Errorf("%s: got restored %t, %v", k.Key, restored, err)
		}
	}
	e.wantDamaged(t, "after the repair")
	if again := e.loaded(t); len(again.Lost) > 0 {
		t.Errorf("got lost keys %+v after the repair", again.Lost)
	}
}

// TestRemovalBesideDamage removes the keys of an image that are ready. Its damaged keys stay until they are dropped, with
// their records, and then nothing is left.
func TestRemovalBesideDamage(t *testing.T) {
	e, i, hidden := damagedEnv(t)
	e.remove(t, keysOf(entries(tag, i, native, 0))...)
	e.wantDamaged(t, "after the removal", hidden...)
	if labels := e.keyLabels(t, hidden[0].Record); len(labels) != 2 {
		t.Errorf("the record carries %v, want the damaged keys", labels)
	}
	if !e.HasBlob(t, i.amd64.Layer.Digest) {
		t.Error("the layers of a damaged image are collected")
	}
	dropped, err := e.store.DropDamaged(e.ctx, keysOf(hidden)...)
	if err != nil || len(dropped) != 2 {
		t.Errorf("got dropped %v, %v", dropped, err)
	}
	e.wantDamaged(t, "after the drop")
	e.WantEmpty(t)
}

// TestTagMovesAwayFromDamage pulls a tag whose damaged key is on the record of another image. That record carries the key no longer,
// and nothing else of it changes.
func TestTagMovesAwayFromDamage(t *testing.T) {
	e, _, hidden := damagedEnv(t)
	e.pull(t, tag, e.image("b"), nativeToo, 0, "")
	digested := hidden[slices.IndexFunc(hidden, func(k imagepin.Entry) bool { return k.Ref != tag })]
	e.wantDamaged(t, "after the pull", digested)
	labels := e.keyLabels(t, digested.Record)
	if n := len(labels); n != 3 {
		t.Errorf("the record carries %q, want the 2 keys that are ready, and the damaged one of its digest", labels)
	}
	e.restart()
	if loaded := e.loaded(t); len(loaded.Lost) != 1 {
		t.Errorf("got lost keys %+v after a restart, want that of the digest", loaded.Lost)
	}
}

// TestSyncOfDamage lets another tool change the records of damaged keys.
func TestSyncOfDamage(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*env, *testing.T, imagepin.Entry)
		left   int
	}{
		"labels are erased": {func(e *env, t *testing.T, k imagepin.Entry) {
			for label := range e.Records(t)[k.Record].Labels {
				if imagepin.IsKeyLabel(label) {
					e.label(t, k.Record, label, "")
				}
			}
		}, 0},
		"record is deleted": {func(e *env, t *testing.T, k imagepin.Entry) {
			if err := e.Images.Delete(e.ctx, k.Record); err != nil {
				t.Fatal(err)
			}
		}, 0},
		"another label is set": {func(e *env, t *testing.T, k imagepin.Entry) { e.label(t, k.Record, "io.example", "theirs") }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			e, _, hidden := damagedEnv(t)
			c.change(e, t, hidden[0])
			if _, err := e.store.Sync(e.ctx, hidden[0].Record); err != nil {
				t.Fatal(err)
			}
			if got := e.store.Damaged(); len(got) != c.left {
				t.Errorf("got damaged keys %v, want %d", got, c.left)
			}
		})
	}
	t.Run("tag is deleted", func(t *testing.T) {
		e, _, hidden := damagedEnv(t)
		if err := e.Images.Delete(e.ctx, tag); err != nil {
			t.Fatal(err)
		}
		if _, err := e.store.Sync(e.ctx, tag); err != nil {
			t.Fatal(err)
		}
		if got := e.store.Damaged(); len(got) != 1 || got[0].Ref == tag || len(e.keyLabels(t, hidden[0].Record)) != 2 {
			t.Errorf("got damaged keys %v and labels %v, want the key by digest", got, e.keyLabels(t, hidden[0].Record))
		}
	})
}

// TestReleaseKeepsDamaged releases the snapshot of an image after a failed repair. A damaged key of the image keeps it.
func TestReleaseKeepsDamaged(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	if err := os.Remove(e.File(i.root.Digest)); err != nil {
		t.Fatal(err)
	}
	hidden, err := e.store.EvictBlob(e.ctx, i.root.Digest)
	if err != nil || len(hidden) != 2 {
		t.Fatalf("got %v, %v, want 2 keys without their index", hidden, err)
	}
	if err := e.store.ReleaseUnpacked(e.ctx, i.amd64.Config.Digest, "first"); err != nil {
		t.Fatal(err)
	}
	e.Collect(t)
	if !e.HasSnapshot(t, "first", i.amd64.ChainID) || !e.HasBlob(t, i.amd64.Layer.Digest) {
		t.Error("a part of a damaged image that was on the node is gone")
	}
}

// TestEvictedKeyIsNotDurable checks that a start does not believe a key that was durable and has to be unpacked again, because a
// power cut can have ended that. A key without a mark of durability is not written.
func TestEvictedKeyIsNotDurable(t *testing.T) {
	for name, evict := range map[string]func(e *env, k imagepin.Entry) error{
		"snapshot": func(e *env, k imagepin.Entry) error {
			_, err := e.store.EvictSnapshot(e.ctx, k.Target.Snapshotter, k.ChainID.String())
			return err
		},
		"seen": func(e *env, k imagepin.Entry) error {
			_, seen, _ := e.store.See(k.Key)
			_, err := e.store.EvictSeen(e.ctx, seen, "it has no directory")
			return err
		},
	} {
		for _, mark := range []string{"boot", ""} {
			t.Run(name+" "+mark, func(t *testing.T) {
				e := newEnv(t)
				i := e.image("a")
				ctx, done := e.Lease(t)
				defer done()
				e.place(ctx, t, i, native)
				k := entries(tag, i, native, 0)[0]
				k.Durable = mark
				if _, err := e.store.Put(ctx, "", k); err != nil {
					t.Fatal(err)
				}
				before := e.records.writes
				e.removeSnapshot(t, i, native)
				if err := evict(e, k); err != nil {
					t.Fatal(err)
				}
				e.wantDamaged(t, "evicted", k)
				if wrote := e.records.writes > before; wrote != (mark != "") {
					t.Errorf("wrote: %t", wrote)
				}
				e.place(ctx, t, i, native) // and the power is cut
				e.restart()
				loaded := e.loaded(t)
				if mark == "" && len(loaded.Lost) > 0 || mark != "" && (len(loaded.Lost) != 1 || loaded.Lost[0].DamagedAt.IsZero() || loaded.Lost[0].Durable != "") {
					t.Errorf("got lost keys %+v after a restart", loaded.Lost)
				}
			})
		}
	}
}
