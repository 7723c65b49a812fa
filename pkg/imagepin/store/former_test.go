package store_test

import (
	"context"
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestFormerTarget changes the default snapshotter. The keys of an image stay until it is ready in the new one, by a pull
// or a repair, and so does its snapshot. Keys that a kill has left are lost.
func TestFormerTarget(t *testing.T) {
	moved := runtimeplatform.Target{Platform: native.Platform, Snapshotter: "second"}
	for name, ready := range map[string]func(*env, *testing.T, image){
		"pull": func(e *env, t *testing.T, i image) { e.pull(t, tag, i, moved, 1, "") },
		"repair": func(e *env, t *testing.T, i image) {
			ctx, done := e.Lease(t)
			defer done()
			e.place(ctx, t, i, moved)
			for _, k := range entries(tag, i, moved, 1) {
				if restored, err := e.store.PutIf(ctx, k, k.Record); err != nil || !restored {
					t.Fatalf("%s: got restored %t, %v", k.Key, restored, err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			i, other := e.image("a"), e.image("b")
			e.pull(t, tag, i, native, 0, "")
			e.pull(t, "registry.example.com/other:v1", other, native, 0, "")
			before := e.state(t)
			e.configured(t, runtimeplatform.Handler{Name: "runc", Snapshotter: "second"})
			load := func() (lost, former int) {
				t.Helper()
				c := newChecker(e.store)
				have, err := c.Inventory(e.ctx)
				if err != nil {
					t.Fatal(err)
				}
				loaded, err := e.store.Load(e.ctx, func(context.Context) (func(imagepin.Entry) bool, error) {
					return func(k imagepin.Entry) bool { _, gone := c.Lost(k, have); return !gone }, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return len(loaded.Lost), len(loaded.Former)
			}
			if lost, former := load(); lost != 0 || former != 4 || len(e.store.Images()) != 2 {
				t.Errorf("got %d lost and %d former keys and images %v, want 0, 4 and 2", lost, former, e.store.Images())
			}
			if now := e.state(t); lines(now) != lines(before) {
				t.Errorf("the start changed records:\n%s", lines(now))
			}

			ready(e, t, i)
			for _, k := range entries(tag, i, native, 0) {
				if _, ok := e.store.Get(k.Key); ok {
					t.Errorf("key %s is still there", k.Key)
				}
			}
			e.Collect(t)
			for snapshotter, want := range map[string]bool{"first": false, "second": true} {
				if here, err := e.store.HasSnapshot(e.ctx, snapshotter, i.amd64.ChainID); err != nil || here != want {
					t.Errorf("snapshot in %s: got %t, %v", snapshotter, here, err)
				}
			}
			if lost, former := load(); lost != 0 || former != 2 {
				t.Errorf("got %d lost and %d former keys, want 0 and 2", lost, former)
			}

			// An image that was ready for both before the change stays ready for both: the handler may come back.
			e.configured(t, runtimeplatform.Handler{Name: "runc", Snapshotter: "first"}, runtimeplatform.Handler{Name: "second", Snapshotter: "second"})
			load()
			e.pull(t, tag, i, native, 2, "")
			e.configured(t, runtimeplatform.Handler{Name: "runc", Snapshotter: "second"})
			if lost, former := load(); lost != 0 || former != 4 {
				t.Errorf("got %d lost and %d former keys after both were ready, want 0 and 4", lost, former)
			}
		})
	}
}
