package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// idRecord writes the record of an image ID as containerd's CRI does.
func (e *env) idRecord(t *testing.T, i image) images.Image {
	t.Helper()
	img, err := e.Images.Create(e.ctx, images.Image{
		Name: i.amd64.Config.Digest.String(), Target: i.root, Labels: map[string]string{CRIManagedLabel: CRIManagedValue},
	})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestLateRecordOfAnImageID checks that Sync removes the record of an image ID that containerd's CRI writes after the
// image was removed or its lost keys were dropped.
func TestLateRecordOfAnImageID(t *testing.T) {
	for name, remove := range map[string]func(*env, *testing.T, image){
		"removed": func(e *env, t *testing.T, i image) {
			if _, err := e.store.Remove(e.ctx, keysOf(entries(tag, i, native, 0))...); err != nil {
				t.Fatal(err)
			}
		},
		"dropped": func(e *env, t *testing.T, i image) {
			e.removeSnapshot(t, i, native)
			loaded, err := e.loadFor(e.ctx)
			if err != nil || len(loaded.Lost) != 2 {
				t.Fatalf("got load result %v, %v, want 2 lost keys", loaded, err)
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
			e.place(ctx, t, i, native) // the content exists until the lease is deleted
			remove(e, t, i)
			e.idRecord(t, i)
			done()
			img, err := e.store.Sync(e.ctx, i.amd64.Config.Digest.String())
			if err != nil || img != nil {
				t.Errorf("Sync returns %v, %v, want nothing", img, err)
			}
			e.WantEmpty(t)
		})
	}
}

// TestLateRecordWhileSnapshotterHangs checks that Sync starts a garbage collection after it has removed a late record, and
// does not wait for it. A collection does not end while a snapshotter hangs.
func TestLateRecordWhileSnapshotterHangs(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	ctx, done := e.Lease(t)
	defer done()
	e.place(ctx, t, i, native)
	e.remove(t, keysOf(entries(tag, i, native, 0))...)
	name := e.idRecord(t, i).Name
	hanging := hangingLeases{e.Leases, make(chan struct{}), make(chan struct{})}
	released := false
	e.store.Configuration().Leases, e.store.Configuration().Released = hanging, func() { released = true }
	synced := make(chan error, 1)
	go func() {
		_, err := e.store.Sync(e.ctx, name)
		synced <- err
	}()
	select {
	case err := <-synced:
		if err != nil || !released {
			t.Errorf("got %v, a collection was started: %v, want true", err, released)
		}
	case <-hanging.reached:
		t.Error("Sync waits for a collection")
		close(hanging.free)
		<-synced
	}
	if _, err := e.Images.Get(e.ctx, name); !errdefs.IsNotFound(err) {
		t.Errorf("got %v for the late record, want a NotFound error", err)
	}
}

// TestUntagged checks records of image IDs without keys. They are listed until the image has a key or the record is
// removed. They are removed after a grace period, unless another record has the same target.
func TestUntagged(t *testing.T) {
	e := newEnv(t)
	alone, named, pulled := e.image("a"), e.image("b"), e.image("c")
	ctx, done := e.Lease(t)
	defer done()
	for _, i := range []image{alone, named, pulled} {
		e.place(ctx, t, i, native)
		img := e.idRecord(t, i)
		if unknown, err := e.store.Sync(e.ctx, img.Name); err != nil || unknown == nil {
			t.Fatalf("Sync returns %v, %v, want the record", unknown, err)
		}
		e.store.NoteUntagged(Untagged{Entry: imagepin.Entry{ImageID: i.amd64.Config.Digest}})
	}
	if _, err := e.Images.Create(e.ctx, images.Image{Name: "not a reference", Target: named.root}); err != nil {
		t.Fatal(err)
	}
	if _, ok := e.store.FindUntagged(pulled.amd64.Config.Digest.String()); !ok || len(e.store.Untagged()) != 3 {
		t.Errorf("got untagged images %v, want 3", e.store.Untagged())
	}
	e.pull(t, tag, pulled, native, 1, "")
	if _, ok := e.store.FindUntagged(pulled.amd64.Config.Digest.String()); ok || len(e.store.Untagged()) != 2 {
		t.Errorf("got untagged images %v, want 2 without the pulled image", e.store.Untagged())
	}
	for _, c := range []struct {
		name  string
		image image
		age   time.Duration
		want  bool
	}{
		{"within the grace period", alone, time.Hour, false},
		{"after the grace period", alone, 0, true},
		{"after its removal", alone, 0, false},
		{"with another name", named, 0, false},
		{"with a key", pulled, 0, false},
	} {
		got, err := e.store.RemoveUntagged(e.ctx, c.image.amd64.Config.Digest, time.Now().Add(-c.age))
		if err != nil || got != c.want {
			t.Errorf("%s: got removed %v, %v, want %v", c.name, got, err, c.want)
		}
	}
	if err := e.Images.Delete(e.ctx, named.amd64.Config.Digest.String()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.store.Sync(e.ctx, named.amd64.Config.Digest.String()); err != nil {
		t.Fatal(err)
	}
	if all := e.store.Untagged(); len(all) != 0 {
		t.Errorf("got untagged images %v, want none", all)
	}
}

// TestRemoveRecords checks that the records of an image without keys are removed by one of their names, including those
// that containerd's CRI writes later.
func TestRemoveRecords(t *testing.T) {
	e := newEnv(t)
	alone, pulled := e.image("a"), e.image("b")
	ctx, done := e.Lease(t)
	for _, i := range []image{alone, pulled} {
		e.place(ctx, t, i, native)
		e.idRecord(t, i)
	}
	for _, name := range []string{tag, "not a reference"} {
		if _, err := e.Images.Create(e.ctx, images.Image{Name: name, Target: alone.root}); err != nil {
			t.Fatal(err)
		}
	}
	const other = repo + ":other"
	e.pull(t, other, pulled, native, 1, "")
	for _, c := range []struct {
		image image
		names []string
		want  bool
	}{
		{alone, []string{repo + ":unknown"}, false},
		{alone, nil, false},
		{pulled, []string{other, pulled.amd64.Config.Digest.String()}, false},
		{alone, []string{repo + ":unknown", tag}, true},
		{alone, []string{tag}, false},
	} {
		if got, err := e.store.RemoveRecords(e.ctx, c.image.amd64.Config.Digest, c.names...); err != nil || got != c.want {
			t.Errorf("names %v: got removed %v, %v, want %v", c.names, got, err, c.want)
		}
	}
	e.idRecord(t, alone)
	if img, err := e.store.Sync(e.ctx, alone.amd64.Config.Digest.String()); err != nil || img != nil {
		t.Errorf("late record of the ID: Sync returns %v, %v, want nothing", img, err)
	}
	if len(e.store.ByRef(other)) != 1 {
		t.Error("the image with keys is missing")
	}
	if _, err := e.store.Remove(e.ctx, keysOf(entries(other, pulled, native, 1))...); err != nil {
		t.Fatal(err)
	}
	done()
	e.WantEmpty(t)
}

// TestHasKeys checks an image whose keys are ready, lost, dropped, or of another image that its record targeted before.
func TestHasKeys(t *testing.T) {
	e := newEnv(t)
	i, later := e.image("a"), e.image("b")
	want := func(when string, want bool) {
		t.Helper()
		for _, name := range []string{tag, i.amd64.Config.Digest.String()} {
			if got, err := e.store.HasKeys(e.ctx, name); err != nil || got != want {
				t.Errorf("%s, %s: got %v, %v, want %v", when, name, got, err, want)
			}
		}
	}
	if got, err := e.store.HasKeys(e.ctx, tag); !errdefs.IsNotFound(err) || got {
		t.Errorf("no record: got %v, %v, want a NotFound error", got, err)
	}
	e.pull(t, tag, i, native, 0, "")
	want("ready", true)
	e.removeSnapshot(t, i, native)
	loaded, err := e.loadFor(e.ctx)
	if err != nil || len(loaded.Lost) != 2 {
		t.Fatalf("lost are %v, %v", loaded, err)
	}
	want("lost", true)
	all, err := e.Images.List(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range all {
		img.Target = later.root
		if _, err := e.Images.Update(e.ctx, img, "target"); err != nil {
			t.Fatal(err)
		}
	}
	want("of another image", false)
	for _, l := range loaded.Lost {
		if err := e.store.Drop(e.ctx, l.Entry); err != nil {
			t.Fatal(err)
		}
	}
	want("dropped", false)
}

// TestCreateIDRecord checks that the record of an image ID is created only if a record of the image still needs it.
func TestCreateIDRecord(t *testing.T) {
	managed := map[string]string{CRIManagedLabel: CRIManagedValue}
	for name, c := range map[string]struct {
		record *images.Image // nil if it was removed
		want   bool
	}{
		"managed":     {&images.Image{Name: "not a reference", Labels: managed}, true},
		"not managed": {&images.Image{Name: "not a reference"}, false},
		"removed":     {nil, false},
		"moved":       {&images.Image{Name: "not a reference", Labels: managed}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			i, other := e.image("a"), e.image("b")
			read := images.Image{Name: "not a reference", Target: i.root, Labels: managed}
			if c.record != nil {
				c.record.Target = i.root
				if name == "moved" {
					c.record.Target = other.root
				}
				if _, err := e.Images.Create(e.ctx, *c.record); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := e.store.CreateIDRecord(e.ctx, read, i.amd64.Config.Digest); err != nil {
					t.Fatal(err)
				}
			}
			img, err := e.Images.Get(e.ctx, i.amd64.Config.Digest.String())
			if (err == nil) != c.want || c.want && (img.Target.Digest != i.root.Digest || !Managed(img)) {
				t.Errorf("got record of the ID %+v, %v, want it: %v", img, err, c.want)
			}
		})
	}
}

// TestUnaccounted checks which records belong to no key: not those of keys that are ready or lost.
func TestUnaccounted(t *testing.T) {
	e := newEnv(t)
	ready, alone := e.image("a"), e.image("b")
	e.pull(t, tag, ready, native, 0, "")
	ctx, done := e.Lease(t)
	defer done()
	e.place(ctx, t, alone, native)
	id := e.idRecord(t, alone).Name
	want := func(when string) {
		t.Helper()
		all, err := e.store.Unaccounted(e.ctx)
		if err != nil || len(all) != 1 || all[0].Name != id {
			t.Errorf("%s: got records %v, %v, want only %s", when, all, err, id)
		}
	}
	want("ready")
	if lost, err := e.store.EvictBlob(e.ctx, ready.amd64.Manifest.Digest); err != nil || len(lost) > 0 {
		t.Fatalf("got lost keys %v, %v, want none", lost, err)
	}
	if err := e.Content.Delete(e.ctx, ready.amd64.Manifest.Digest); err != nil {
		t.Fatal(err)
	}
	if lost, err := e.store.EvictBlob(e.ctx, ready.amd64.Manifest.Digest); err != nil || len(lost) != 2 {
		t.Fatalf("got lost keys %v, %v, want 2", lost, err)
	}
	want("lost")
}

// TestForgottenImage removes all names of an image as another tool does. The record of its ID stays, and with it the content
// and the snapshot, until the grace period after the removal is over.
func TestForgottenImage(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	id := i.amd64.Config.Digest
	pulled := time.Now()
	for _, name := range []string{tag, repo + "@" + i.root.Digest.String()} {
		if _, ok := e.store.FindUntagged(id.String()); ok {
			t.Errorf("%s: the image is without a key already", name)
		}
		e.delete(t, name)
		if unknown, err := e.store.Sync(e.ctx, name); err != nil || unknown != nil {
			t.Fatalf("Sync of %s returns %v, %v, want nothing", name, unknown, err)
		}
	}
	e.Collect(t)
	u, ok := e.store.FindUntagged(id.String())
	if !ok || u.ImageID != id || u.Ref != "" || !e.HasBlob(t, i.amd64.Manifest.Digest) || !e.HasSnapshot(t, native.Snapshotter, i.amd64.ChainID) {
		t.Errorf("got %+v, %v, want the image with its content and its snapshot", u, ok)
	}
	if removed, err := e.store.RemoveUntagged(e.ctx, id, pulled); err != nil || removed {
		t.Errorf("within the grace period: removed %v, %v", removed, err)
	}
	if removed, err := e.store.RemoveUntagged(e.ctx, id, time.Now()); err != nil || !removed {
		t.Errorf("after the grace period: removed %v, %v", removed, err)
	}
	e.WantEmpty(t)
}
