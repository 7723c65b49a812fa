package store_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// loaded builds the index as a start does.
func (e *env) loaded(t *testing.T) *store.Loaded {
	t.Helper()
	c := newChecker(e.store)
	loaded, err := e.store.Load(e.ctx, func(ctx context.Context) (func(imagepin.Entry) bool, error) {
		have, err := c.Inventory(ctx)
		return func(k imagepin.Entry) bool { _, gone := c.Lost(k, have); return !gone }, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// markUnused marks the unused keys, and returns them as text.
func (e *env) markUnused(t *testing.T) []string {
	t.Helper()
	unused, err := e.store.MarkUnused(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	return texts(keysOf(unused)...)
}

// allHandlers are the runtime handlers of a new env.
func allHandlers() []runtimeplatform.Handler {
	return []runtimeplatform.Handler{
		{Name: "runc", Snapshotter: "first"}, {Name: "runc-second", Snapshotter: "second"},
		{Name: "arm", Snapshotter: "first", Platform: "linux/arm64"}, {Name: "arm-second", Snapshotter: "second", Platform: "linux/arm64"},
	}
}

// TestUnused changes the configuration so that no runtime handler has the target of a key: its handler is gone, its platform
// is mistyped, or the default snapshotter is another one. The key and its content stay, and it is ready at once when the
// configuration comes back. Only the time since when it is unused is written, once, and removed again.
func TestUnused(t *testing.T) {
	for name, c := range map[string]struct {
		handlers []runtimeplatform.Handler
		unused   []runtimeplatform.Target
	}{
		"handlers are gone":    {allHandlers()[:1], []runtimeplatform.Target{nativeToo, foreign, foreignToo}},
		"platform is mistyped": {[]runtimeplatform.Handler{allHandlers()[0], allHandlers()[1], {Name: "arm", Snapshotter: "first", Platform: "linux/armm"}}, []runtimeplatform.Target{foreign, foreignToo}},
		"default snapshotter":  {[]runtimeplatform.Handler{{Name: "runc", Snapshotter: "second"}, {Name: "arm", Snapshotter: "second", Platform: "linux/arm64"}}, []runtimeplatform.Target{native, foreign}},
		// Its sandboxes have the node's platform.
		"only another platform": {[]runtimeplatform.Handler{{Name: "other", Snapshotter: "second", Platform: "linux/s390x"}}, []runtimeplatform.Target{native, foreign, foreignToo}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			i := e.image("a")
			for _, target := range []runtimeplatform.Target{native, nativeToo, foreign, foreignToo} {
				e.pull(t, tag, i, target, 0, "")
			}
			before, keys := e.state(t), e.keys()
			var want []string
			for _, target := range c.unused {
				want = append(want, texts(keysOf(entries(tag, i, target, 0))...)...)
			}
			slices.Sort(want)

			e.configured(t, c.handlers...)
			for start := range 2 {
				if l := e.loaded(t); len(l.Lost)+len(l.Superseded) > 0 || len(l.Former) != len(want) {
					t.Fatalf("start %d: got %d lost, %d superseded and former keys %q, want 0, 0 and %q", start, len(l.Lost), len(l.Superseded), texts(keysOf(l.Former)...), want)
				}
				wantEqual(t, "keys", e.keys(), keys)
				if start == 0 && lines(e.state(t)) != lines(before) {
					t.Errorf("the start wrote:\n%s", lines(e.state(t)))
				}
				e.records.writes = 0
				wantEqual(t, "unused keys", e.markUnused(t), want)
				if start > 0 && e.records.writes > 0 {
					t.Errorf("the second start wrote %d times", e.records.writes)
				}
			}
			if lines(e.state(t)) == lines(before) {
				t.Error("the time since when the keys are unused is not recorded")
			}
			for _, img := range e.store.Images() {
				for _, k := range img.Entries {
					if is := slices.Contains(c.unused, k.Target); e.store.IsUnused(k) != is || k.UnusedAt.IsZero() == is || e.store.Expired(k) {
						t.Errorf("key %s: got unused %t since %s", k.Key, e.store.IsUnused(k), k.UnusedAt)
					}
				}
			}
			e.wantSound(t)

			e.configured(t, allHandlers()...)
			if l := e.loaded(t); len(l.Lost)+len(l.Superseded)+len(l.Former) > 0 {
				t.Errorf("with the old configuration: got %+v, want nothing lost", l)
			}
			wantEqual(t, "keys", e.keys(), keys)
			wantEqual(t, "unused keys", e.markUnused(t), nil)
			if now := e.state(t); lines(now) != lines(before) {
				t.Errorf("the old configuration does not leave the old records:\n%s\nwant:\n%s", lines(now), lines(before))
			}
			e.wantSound(t)
			e.remove(t, keysOf(slices.Concat(entries(tag, i, native, 0), entries(tag, i, nativeToo, 0), entries(tag, i, foreign, 0), entries(tag, i, foreignToo, 0)))...)
			e.WantEmpty(t)
		})
	}
}

// TestSuperseded makes an image ready for another target after its key became unused. A kill leaves both keys. The next start
// drops the unused one.
func TestSuperseded(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.configured(t, runtimeplatform.Handler{Name: "runc", Snapshotter: "second"})
	e.loaded(t)
	e.markUnused(t)
	e.configured(t, allHandlers()...) // so that the pull does not remove the unused key
	e.loaded(t)
	e.pull(t, tag, i, nativeToo, int(time.Since(time.Unix(when, 0)).Seconds())+10, "")
	e.configured(t, runtimeplatform.Handler{Name: "runc", Snapshotter: "second"})
	l := e.loaded(t)
	if len(l.Superseded) != 2 || len(l.Lost)+len(l.Former) > 0 {
		t.Errorf("got %+v, want 2 superseded keys", l)
	}
	for _, k := range l.Superseded {
		if err := e.store.Drop(e.ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, "keys", e.keys(), texts(keysOf(entries(tag, i, nativeToo, 0))...))
	if e.HasSnapshot(t, "first", i.amd64.ChainID) {
		t.Error("the old snapshot is not freed")
	}
}

// TestExpired has keys that have been unused for long. They stay, but their image is to be listed without names. Those of an
// image that pods can use are removed.
func TestExpired(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	long := time.Now().Add(-store.UnusedFor - time.Hour)
	for _, target := range []runtimeplatform.Target{native, nativeToo, foreign} {
		ctx, done := e.Lease(t)
		e.place(ctx, t, i, target)
		keys := entries(tag, i, target, 0)
		for at := range keys {
			keys[at].UnusedAt = long
		}
		if _, err := e.store.Put(ctx, "", keys...); err != nil {
			t.Fatal(err)
		}
		done()
	}
	e.configured(t, runtimeplatform.Handler{Name: "runc", Snapshotter: "first"})
	e.loaded(t)
	wantEqual(t, "unused keys", e.markUnused(t), texts(keysOf(slices.Concat(entries(tag, i, nativeToo, 0), entries(tag, i, foreign, 0)))...))
	for _, img := range e.store.Images() {
		for _, k := range img.Entries {
			if e.store.Expired(k) != (k.Target != native) {
				t.Errorf("key %s: got expired %t", k.Key, e.store.Expired(k))
			}
		}
	}
	wantEqual(t, "keys to remove", texts(e.store.ExpiredBeside()...), texts(keysOf(entries(tag, i, nativeToo, 0))...))
}

// TestUnusedByWrongClock has a key that became unused while the node's clock had not been synchronized. It does not expire with the
// synchronization, but is kept from the next start.
func TestUnusedByWrongClock(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	ctx, done := e.Lease(t)
	e.place(ctx, t, i, foreign)
	keys := entries(tag, i, foreign, 0)
	for at := range keys {
		keys[at].UnusedAt = time.Unix(0, 0)
	}
	if _, err := e.store.Put(ctx, "", keys...); err != nil {
		t.Fatal(err)
	}
	done()
	e.configured(t, runtimeplatform.Handler{Name: "runc", Snapshotter: "first"})
	e.loaded(t)
	e.markUnused(t)
	for _, img := range e.store.Images() {
		for _, k := range img.Entries {
			if e.store.Expired(k) || time.Since(k.UnusedAt) > time.Hour {
				t.Errorf("key %s: got unused since %s", k.Key, k.UnusedAt)
			}
		}
	}
}

// TestUnusedBesideReady has an image that is ready for two targets, one of which loses its handler. A pull with another
// credential, and a repair, record the other key again. The unused key stays.
func TestUnusedBesideReady(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, nativeToo, 0, "")
	e.configured(t, allHandlers()[0])
	e.loaded(t)
	want := e.markUnused(t)
	e.pull(t, tag, i, native, 0, "anotherproof")
	for _, k := range e.store.ByRef(tag) {
		if k.Target != native {
			continue
		}
		_, seen, _ := e.store.See(k.Key)
		if evicted, err := e.store.EvictSeen(e.ctx, seen, "test"); err != nil || !evicted {
			t.Fatalf("got evicted %t, %v", evicted, err)
		}
		ctx, done := e.Lease(t)
		if restored, err := e.store.PutIf(ctx, k, k.Record); err != nil || !restored {
			t.Errorf("got restored %t, %v", restored, err)
		}
		done()
	}
	wantEqual(t, "unused keys", e.markUnused(t), want)
	e.wantSound(t)
}
