package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

func TestSync(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*env, *testing.T, image, image)
		sync      string // "tag", "digest", "ID" or "other"
		keys      int    // remaining keys
		unknown   bool
	}{
		"no change":                     {func(*env, *testing.T, image, image) {}, "digest", 2, false},
		"no change, by ID":              {func(*env, *testing.T, image, image) {}, "ID", 2, false},
		"tag was deleted":               {(*env).deleteTag, "tag", 1, false},
		"record with keys was deleted":  {(*env).deleteDigest, "digest", 1, false},
		"tag was moved":                 {(*env).moveTag, "tag", 2, true},
		"record with keys was moved":    {(*env).moveDigest, "digest", 1, true},
		"labels were removed":           {(*env).wipeDigest, "digest", 2, false},
		"an unknown record was created": {(*env).createOther, "other", 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			a, b := e.image("a"), e.image("b")
			e.pull(t, tag, a, native, 0, "")
			ctx, done := e.Lease(t)
			defer done()
			e.place(ctx, t, b, native)
			before := e.state(t)
			c.meanwhile(e, t, a, b)
			synced := map[string]string{
				"tag": tag, "digest": repo + "@" + a.root.Digest.String(), "ID": a.amd64.Config.Digest.String(), "other": repo + ":other",
			}[c.sync]
			unknown, err := e.store.Sync(e.ctx, synced)
			if err != nil {
				t.Fatal(err)
			}
			if (unknown != nil) != c.unknown || (unknown != nil && unknown.Name != synced) {
				t.Errorf("Sync returns %v for adoption, want a record: %v", unknown, c.unknown)
			}
			if got := e.keys(); len(got) != c.keys {
				t.Errorf("got keys %v, want %d", got, c.keys)
			}
			e.wantSound(t)
			if strings.HasPrefix(name, "labels") && lines(e.state(t)) != lines(before) {
				t.Errorf("labels were not repaired:\n%s", lines(e.state(t)))
			}
			if strings.HasPrefix(name, "no change") && e.records.writes != 3 {
				t.Errorf("Sync wrote %d times, want 0", e.records.writes-3)
			}
			after := e.state(t)
			if _, err := e.store.Sync(e.ctx, synced); err != nil || lines(e.state(t)) != lines(after) {
				t.Errorf("the second Sync changed records: %v", err)
			}
		})
	}
}

// TestSyncOfACopiedRecord syncs a record that another tool has copied with its labels. It is adopted as any other, and does not
// keep the labels of keys that another record carries. Labels of a newer version stay.
func TestSyncOfACopiedRecord(t *testing.T) {
	e := newEnv(t)
	a := e.image("a")
	e.pull(t, tag, a, native, 0, "")
	copied, err := e.Images.Get(e.ctx, repo+"@"+a.root.Digest.String())
	if err != nil {
		t.Fatal(err)
	}
	newer := imagepin.KeyLabelPrefix + "0123456789abcdef"
	copied.Name, copied.Labels[newer] = repo+":other", `{"v":99}`
	if _, err := e.Images.Create(e.ctx, copied); err != nil {
		t.Fatal(err)
	}
	unknown, err := e.store.Sync(e.ctx, copied.Name)
	if err != nil || unknown == nil {
		t.Fatalf("Sync returns %v, %v, want the record for adoption", unknown, err)
	}
	now, err := e.Images.Get(e.ctx, copied.Name)
	if err != nil {
		t.Fatal(err)
	}
	for name := range now.Labels {
		if imagepin.IsKeyLabel(name) != (name == newer) {
			t.Errorf("the copy has the label %s", name)
		}
	}
	if got := e.keys(); len(got) != 2 {
		t.Errorf("got keys %v, want both", got)
	}
	e.wantSound(t)
}

// TestSyncOfALostImage drops the keys of an image one by one, and syncs their record after each while its snapshot is
// not collected yet. Sync must not return the record for adoption.
func TestSyncOfALostImage(t *testing.T) {
	for _, target := range []runtimeplatform.Target{native, foreign} {
		t.Run(target.String(), func(t *testing.T) {
			e := newEnv(t)
			i := e.image("a")
			e.pull(t, tag, i, target, 0, "")
			e.removeSnapshot(t, i, target)
			loaded, err := e.loadFor(e.ctx)
			if err != nil || len(loaded.Lost) != 2 {
				t.Fatalf("got load result %v, %v, want 2 lost keys", loaded, err)
			}
			held, done := e.Lease(t) // as before a collection
			e.place(held, t, i, target)
			for _, l := range loaded.Lost {
				if err := e.store.Drop(e.ctx, l.Entry); err != nil {
					t.Fatal(err)
				}
				if unknown, err := e.store.Sync(e.ctx, l.Entry.Record); err != nil || unknown != nil {
					t.Errorf("Sync returns %v for adoption, %v, want nothing", unknown, err)
				}
			}
			done()
			e.WantEmpty(t)
		})
	}
}

// configured replaces the runtime handlers of the store.
func (e *env) configured(t *testing.T, handlers ...runtimeplatform.Handler) {
	t.Helper()
	runtimes, err := runtimeplatform.New(handlers[0].Name, handlers, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		t.Fatal(err)
	}
	c := *e.store.Configuration()
	c.Runtimes = ctdtest.Always(runtimes)
	e.store = New(c)
}

// TestPutBeforeSync deletes or moves a record, and pulls the image again before the event of that change arrives.
func TestPutBeforeSync(t *testing.T) {
	for name, change := range map[string]func(*env, *testing.T, image, image){
		"tag was deleted":              (*env).deleteTag,
		"record with keys was deleted": (*env).deleteDigest,
		"tag was moved":                (*env).moveTag,
		"record with keys was moved":   (*env).moveDigest,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			a, b := e.image("a"), e.image("b")
			e.pull(t, tag, a, native, 0, "")
			ctx, done := e.Lease(t)
			defer done()
			e.place(ctx, t, b, native)
			before := e.state(t)
			pulled := entries(tag, a, native, 0)
			recorded := func() bool {
				t.Helper()
				ok, err := e.store.Recorded(e.ctx, "", pulled...)
				if err != nil {
					t.Fatal(err)
				}
				return ok
			}
			if !recorded() {
				t.Error("the first pull is not recorded")
			}
			change(e, t, a, b)
			if recorded() {
				t.Error("the pull is recorded after the change")
			}
			if err := e.store.AddToLease(ctx, pulled...); err != nil {
				t.Fatal(err)
			}
			if _, err := e.store.Put(ctx, "", pulled...); err != nil {
				t.Fatal(err)
			}
			if !recorded() {
				t.Error("the second pull is not recorded")
			}
			for _, synced := range []string{tag, repo + "@" + a.root.Digest.String()} {
				if unknown, err := e.store.Sync(e.ctx, synced); err != nil || unknown != nil {
					t.Errorf("Sync %s: got record %v, %v, want none", synced, unknown, err)
				}
			}
			if after := e.state(t); lines(after) != lines(before) {
				t.Errorf("got records\n%s\nwant\n%s", lines(after), lines(before))
			}
			e.wantSound(t)
		})
	}
}

func (e *env) deleteTag(t *testing.T, _, _ image) { e.delete(t, tag) }

func (e *env) deleteDigest(t *testing.T, a, _ image) { e.delete(t, repo+"@"+a.root.Digest.String()) }

func (e *env) delete(t *testing.T, name string) {
	t.Helper()
	if err := e.Images.Delete(e.ctx, name); err != nil {
		t.Fatal(err)
	}
}

func (e *env) moveTag(t *testing.T, _, b image) { e.move(t, tag, b) }

func (e *env) moveDigest(t *testing.T, a, b image) { e.move(t, repo+"@"+a.root.Digest.String(), b) }

func (e *env) move(t *testing.T, name string, to image) {
	t.Helper()
	if _, err := e.Images.Update(e.ctx, images.Image{Name: name, Target: to.root}, "target"); err != nil {
		t.Fatal(err)
	}
}

// wipeDigest removes labels as stock containerd's CRI does when it pulls the same digest again.
func (e *env) wipeDigest(t *testing.T, a, _ image) {
	t.Helper()
	if _, err := e.Images.Update(e.ctx, images.Image{
		Name: repo + "@" + a.root.Digest.String(), Labels: map[string]string{CRIManagedLabel: CRIManagedValue},
	}, "labels"); err != nil {
		t.Fatal(err)
	}
}

func (e *env) createOther(t *testing.T, _, b image) {
	t.Helper()
	if _, err := e.Images.Create(e.ctx, images.Image{Name: repo + ":other", Target: b.root}); err != nil {
		t.Fatal(err)
	}
}
