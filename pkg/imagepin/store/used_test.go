package store_test

import (
	"testing"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestMarkUsed checks that a use is written once per interval, in the label of each key, and survives a restart and a pull of the same
// image. A recorded use in the future, by a wrong clock, is replaced.
func TestMarkUsed(t *testing.T) {
	e := newEnv(t)
	i, later := e.image("a"), e.image("b")
	e.pull(t, tag, i, native, 0, "")
	keys := keysOf(entries(tag, i, native, 0))
	used := func(k imagepin.Key) time.Time {
		t.Helper()
		got, ok := e.store.Get(k)
		if !ok {
			t.Fatalf("%s is gone", k)
		}
		return got.UsedAt
	}
	mark := func(interval time.Duration, wantWrites bool) {
		t.Helper()
		before := lines(e.state(t))
		if err := e.store.MarkUsed(e.ctx, interval, keys...); err != nil {
			t.Fatal(err)
		}
		if wrote := lines(e.state(t)) != before; wrote != wantWrites {
			t.Errorf("wrote: %t, want %t", wrote, wantWrites)
		}
	}
	mark(100*365*24*time.Hour, false) // it became ready within the interval
	start := time.Now()
	mark(time.Hour, true)
	mark(time.Hour, false)
	first := used(keys[0])
	if first.Before(start) || first.After(time.Now()) || !used(keys[1]).Equal(first) && used(keys[1]).Before(start) {
		t.Errorf("got used at %s and %s", first, used(keys[1]))
	}
	e.restart()
	e.load(t)
	if !used(keys[0]).Equal(first) {
		t.Errorf("after a restart: got %s, want %s", used(keys[0]), first)
	}
	e.pull(t, tag, i, native, 5, "")
	if !used(keys[0]).Equal(first) {
		t.Errorf("after a pull of the same image: got %s, want %s", used(keys[0]), first)
	}
	mark(0, true)
	if !used(keys[0]).After(first) {
		t.Errorf("after another use: got %s, want a time after %s", used(keys[0]), first)
	}

	// The image keeps its last use when its tag moves.
	e.pull(t, tag, later, native, 10, "")
	if used(keys[0]).IsZero() || !used(keys[1]).IsZero() {
		t.Errorf("after the tag has moved: got %s for the old digest, and %s for the tag", used(keys[0]), used(keys[1]))
	}
	e.wantSound(t)
}

// TestMarkUsedInTheFuture checks that a key with a use in the future gets the current time.
func TestMarkUsedInTheFuture(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 1<<30, "") // in 2057
	k := entries(tag, i, native, 0)[1].Key
	if err := e.store.MarkUsed(e.ctx, time.Hour, k, imagepin.Key{Ref: "registry.example/absent:1", Target: native}); err != nil {
		t.Fatal(err)
	}
	if got, _ := e.store.Get(k); got.UsedAt.IsZero() || got.UsedAt.After(time.Now()) {
		t.Errorf("got used at %s", got.UsedAt)
	}
}
