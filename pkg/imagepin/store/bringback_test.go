package store_test

import (
	"testing"
)

// Another tool deletes the records of an image one by one. The second record is already gone when the event of the
// first is handled, and must not be created again.
func TestSyncDoesNotRestoreDeletedRecords(t *testing.T) {
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
		t.Errorf("keys are left: %v", left)
	}
}
