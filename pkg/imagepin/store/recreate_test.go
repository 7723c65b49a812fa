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
	e.wantEmpty(t)
	if left := e.store.Images(); len(left) > 0 {
		t.Errorf("remaining keys: %v", left)
	}
}
