package store

import (
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// idRecord writes the record of an image ID as containerd's CRI does.
func (e *env) idRecord(t *testing.T, i image) images.Image {
	t.Helper()
	img, err := e.Images.Create(e.ctx, images.Image{
		Name: i.amd64.Config.Digest.String(), Target: i.root, Labels: map[string]string{criManagedLabel: criManagedValue},
	})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestLateRecordOfAnImageID has containerd's CRI write the record of an image ID
// after the image was removed, or its lost keys were dropped. It goes with its event.
func TestLateRecordOfAnImageID(t *testing.T) {
	for name, remove := range map[string]func(*env, *testing.T, image){
		"removed": func(e *env, t *testing.T, i image) {
			if _, err := e.store.Remove(e.ctx, keysOf(entries(tag, i, native, 0))...); err != nil {
				t.Fatal(err)
			}
		},
		"dropped": func(e *env, t *testing.T, i image) {
			e.configured(t, runtimeplatform.Handler{Name: "other", Snapshotter: "second"})
			loaded, err := e.store.Load(e.ctx)
			if err != nil || len(loaded.Lost) != 2 {
				t.Fatalf("lost are %v, %v", loaded, err)
			}
			for _, l := range loaded.Lost {
				if err := e.store.Drop(e.ctx, l.Entry); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			i := e.image("a")
			e.pull(t, tag, i, native, 0, "")
			ctx, done := e.Lease(t)
			e.place(ctx, t, i, native) // it is there until it is collected
			remove(e, t, i)
			e.idRecord(t, i)
			done()
			img, err := e.store.Sync(e.ctx, i.amd64.Config.Digest.String())
			if err != nil || img != nil {
				t.Errorf("got %v, %v", img, err)
			}
			e.wantEmpty(t)
		})
	}
}

// TestUntagged has records of image IDs that no key accounts for. They are listed,
// until there is a key or the record goes, and removed after a time of grace where
// nothing else names their target.
func TestUntagged(t *testing.T) {
	e := newEnv(t)
	alone, named, pulled := e.image("a"), e.image("b"), e.image("c")
	ctx, done := e.Lease(t)
	defer done()
	for _, i := range []image{alone, named, pulled} {
		e.place(ctx, t, i, native)
		img := e.idRecord(t, i)
		if unknown, err := e.store.Sync(e.ctx, img.Name); err != nil || unknown == nil {
			t.Fatalf("got %v, %v", unknown, err)
		}
		e.store.NoteUntagged(Untagged{Entry: imagepin.Entry{ImageID: i.amd64.Config.Digest}})
	}
	if _, err := e.Images.Create(e.ctx, images.Image{Name: "not a reference", Target: named.root}); err != nil {
		t.Fatal(err)
	}
	if _, ok := e.store.FindUntagged(pulled.amd64.Config.Digest.String()); !ok || len(e.store.Untagged()) != 3 {
		t.Errorf("listed are %v", e.store.Untagged())
	}
	e.pull(t, tag, pulled, native, 1, "")
	if _, ok := e.store.FindUntagged(pulled.amd64.Config.Digest.String()); ok || len(e.store.Untagged()) != 2 {
		t.Errorf("listed besides a key are %v", e.store.Untagged())
	}
	for _, c := range []struct {
		name  string
		image image
		age   time.Duration
		want  bool
	}{
		{"within the time of grace", alone, time.Hour, false},
		{"after it", alone, 0, true},
		{"that was removed", alone, 0, false},
		{"with another name", named, 0, false},
		{"with a key", pulled, 0, false},
	} {
		got, err := e.store.RemoveUntagged(e.ctx, c.image.amd64.Config.Digest, time.Now().Add(-c.age))
		if err != nil || got != c.want {
			t.Errorf("%s: removed %v, %v", c.name, got, err)
		}
	}
	if err := e.Images.Delete(e.ctx, named.amd64.Config.Digest.String()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.store.Sync(e.ctx, named.amd64.Config.Digest.String()); err != nil {
		t.Fatal(err)
	}
	if all := e.store.Untagged(); len(all) != 0 {
		t.Errorf("listed are still %v", all)
	}
}
