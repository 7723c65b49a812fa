package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// TestLockHonorsContext blocks a writer in a call of containerd. Other writers return when their context is canceled,
// and readers do not wait.
func TestLockHonorsContext(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	entries := entries(tag, i, native, 1)
	reached, free := make(chan struct{}), make(chan struct{})
	e.store.Configuration().Records = ctdtest.Records{Store: ctdtest.Images{Store: e.store.Configuration().Records, Before: ctdtest.On("List", func(string) error {
		close(reached)
		<-free
		return nil
	})}}
	loaded := make(chan error, 1)
	go func() {
		_, err := e.loadFor(e.ctx)
		loaded <- err
	}()
	<-reached
	canceled, cancel := context.WithCancel(e.ctx)
	cancel()
	held, done := e.Lease(t)
	defer done()
	leased, cancel := context.WithCancel(held)
	cancel()
	for what, write := range map[string]func() error{
		"Put":            func() error { _, err := e.store.Put(canceled, "proof", entries...); return err },
		"Remove":         func() error { _, err := e.store.Remove(canceled, entries[0].Key); return err },
		"Sync":           func() error { _, err := e.store.Sync(canceled, tag); return err },
		"Drop":           func() error { return e.store.Drop(canceled, entries[0]) },
		"PutIf":          func() error { _, err := e.store.PutIf(leased, entries[0], tag); return err },
		"Adopt":          func() error { _, err := e.store.Adopt(canceled, Adoption{Entries: entries}); return err },
		"RepairRecords":  func() error { return e.store.RepairRecords(canceled, entries[0]) },
		"Load":           func() error { _, err := e.loadFor(canceled); return err },
		"ReleaseOrphans": func() error { return e.store.ReleaseOrphans(canceled, nil) },
		"EvictBlob":      func() error { _, err := e.store.EvictBlob(canceled, entries[0].Manifest); return err },
		"RemoveUntagged": func() error {
			_, err := e.store.RemoveUntagged(canceled, entries[0].ImageID, time.Now())
			return err
		},
		"CreateIDRecord": func() error { return e.store.CreateIDRecord(canceled, images.Image{Name: tag}, entries[0].ImageID) },
		"RemoveRecords": func() error {
			_, err := e.store.RemoveRecords(canceled, entries[0].ImageID, tag)
			return err
		},
		"Shutdown": func() error { return e.store.Shutdown(canceled) },
	} {
		if err := write(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want context.Canceled", what, err)
		}
	}
	if len(e.store.ByRef(tag)) != 1 || len(e.store.Images()) != 1 {
		t.Error("readers do not return the known entries")
	}
	close(free)
	if err := <-loaded; err != nil {
		t.Error(err)
	}
}
