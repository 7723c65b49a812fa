package store_test

import (
	"testing"
)

// TestSyncDoesNotRecreateDeletedRecords deletes all records of an image before the first event is handled. Sync must
// not create the others again.
func TestSyncDoesNotRecreateDeletedRecords(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, nativeToo, 1, "")
	names := []string{tag, entries(tag, i, native, 0)[0].Record, i.amd64.Config.Digest.String()}
	for _, name := range names {
		if err := e.Images.Delete(e.ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		if _, err := e.store.Sync(e.ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	e.WantEmpty(t)
	if left := e.store.Images(); len(left) > 0 {
		t.Errorf("remaining keys: %v", left)
	}
}

// TestPutOverRemovedRecords removes each record of an image with another tool just before a pull for a second snapshotter
// writes it. Without a transaction, the pull has read the record by then. The pull creates it again, and leaves no key on
// a record that is not in the index.
func TestPutOverRemovedRecords(t *testing.T) {
	for _, moved := range []bool{false, true} {
		prepare := func() (*env, image) {
			e := newEnv(t)
			e.pull(t, tag, e.image("a"), native, 0, "")
			if moved {
				return e, e.image("b")
			}
			return e, e.image("a")
		}
		put := func(e *env, i image, before func(name string)) (written []string) {
			ctx, done := e.Lease(t)
			defer done()
			e.place(ctx, t, i, nativeToo)
			e.records.before = func(name string) {
				written = append(written, name)
				if before != nil {
					before(name)
				}
			}
			if _, err := e.store.Put(e.ctx, "", entries(tag, i, nativeToo, 1)...); err != nil {
				t.Errorf("tag moved %v: %v", moved, err)
			}
			e.records.before = nil
			return written
		}
		e, i := prepare()
		names := put(e, i, nil)
		if len(names) == 0 {
			t.Fatal("the pull does not write")
		}
		for at, name := range names {
			e, i := prepare()
			n := 0
			put(e, i, func(string) {
				if n++; n == at+1 {
					_ = e.Images.Delete(e.ctx, name) // a record that the pull creates does not exist yet
				}
			})
			for _, want := range entries(tag, i, nativeToo, 1) {
				if got, ok := e.store.Get(want.Key); !ok || got.Root.Digest != want.Root.Digest {
					t.Errorf("%s removed: key %s has digest %q, want %s", name, want.Key, got.Root.Digest, want.Root.Digest)
				}
			}
			for _, name := range names {
				if _, err := e.store.Sync(e.ctx, name); err != nil {
					t.Error(err)
				}
			}
			e.Collect(t)
			e.wantSound(t)
		}
	}
}
