package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
)

// stuckRecords is an image store whose List blocks until free is closed.
type stuckRecords struct {
	Records
	reached, free chan struct{}
}

func (r stuckRecords) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	close(r.reached)
	<-r.free
	return r.Records.List(ctx, filters...)
}

// TestLockHonorsContext blocks containerd under a writer. All other writers return when their context ends, and readers
// do not wait.
func TestLockHonorsContext(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	entries := entries(tag, i, native, 1)
	records := stuckRecords{e.store.Configuration().Records, make(chan struct{}), make(chan struct{})}
	e.store.Configuration().Records = records
	loaded := make(chan error, 1)
	go func() {
		_, err := e.loadFor(e.ctx)
		loaded <- err
	}()
	<-records.reached
	gone, cancel := context.WithCancel(e.ctx)
	cancel()
	held, done := e.Lease(t)
	defer done()
	leased, cancel := context.WithCancel(held)
	cancel()
	for what, write := range map[string]func() error{
		"Put":            func() error { _, err := e.store.Put(gone, "proof", entries...); return err },
		"Remove":         func() error { _, err := e.store.Remove(gone, entries[0].Key); return err },
		"Sync":           func() error { _, err := e.store.Sync(gone, tag); return err },
		"Drop":           func() error { return e.store.Drop(gone, entries[0]) },
		"PutIf":          func() error { _, err := e.store.PutIf(leased, entries[0], tag); return err },
		"Adopt":          func() error { _, err := e.store.Adopt(gone, Adoption{Entries: entries}); return err },
		"RepairRecords":  func() error { return e.store.RepairRecords(gone, entries[0]) },
		"Load":           func() error { _, err := e.loadFor(gone); return err },
		"ReleaseOrphans": func() error { return e.store.ReleaseOrphans(gone, nil) },
		"EvictBlob":      func() error { _, err := e.store.EvictBlob(gone, entries[0].Manifest); return err },
		"RemoveUntagged": func() error {
			_, err := e.store.RemoveUntagged(gone, entries[0].ImageID, time.Now())
			return err
		},
		"CreateIDRecord": func() error { return e.store.CreateIDRecord(gone, images.Image{Name: tag}, entries[0].ImageID) },
		"RemoveRecords": func() error {
			_, err := e.store.RemoveRecords(gone, entries[0].ImageID, tag)
			return err
		},
		"End": func() error { return e.store.Shutdown(gone) },
	} {
		if err := write(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(e.store.ByRef(tag)) != 1 || len(e.store.Images()) != 1 {
		t.Error("readers do not return the known entries")
	}
	close(records.free)
	if err := <-loaded; err != nil {
		t.Error(err)
	}
}
