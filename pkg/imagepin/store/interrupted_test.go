package store_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestInterruptedOperations interrupts operations after any number of writes. No key is left without its content, and
// repeating the operation has the same result as without the interruption.
func TestInterruptedOperations(t *testing.T) {
	type operation func(*testing.T, *env, image, image) error
	put := func(target runtimeplatform.Target, second bool, at int) operation {
		return func(t *testing.T, e *env, a, b image) error {
			i := a
			if second {
				i = b
			}
			ctx, done := e.Lease(t)
			defer done()
			e.place(ctx, t, i, target)
			_, err := e.store.Put(e.ctx, "proof", entries(tag, i, target, at)...)
			return err
		}
	}
	remove := func(target runtimeplatform.Target) operation {
		return func(t *testing.T, e *env, a, _ image) error {
			_, err := e.store.Remove(e.ctx, keysOf(entries(tag, a, target, 0))...)
			return err
		}
	}
	for name, c := range map[string]struct {
		before []operation
		do     operation
	}{
		"first pull":                        {nil, put(native, false, 0)},
		"first pull of another platform":    {nil, put(foreign, false, 0)},
		"pull for a second snapshotter":     {[]operation{put(native, false, 0)}, put(nativeToo, false, 1)},
		"pull of a tag that moved":          {[]operation{put(native, false, 0)}, put(native, true, 1)},
		"foreign pull of a tag that moved":  {[]operation{put(foreign, false, 0)}, put(foreign, true, 1)},
		"removal":                           {[]operation{put(native, false, 0)}, remove(native)},
		"removal of another platform":       {[]operation{put(foreign, false, 0)}, remove(foreign)},
		"removal for one snapshotter":       {[]operation{put(native, false, 0), put(nativeToo, false, 1)}, remove(native)},
		"removal of the old image of a tag": {[]operation{put(native, false, 0), put(nativeToo, true, 1)}, remove(native)},
		"pull for one snapshotter of a tag that moved": {
			[]operation{put(native, false, 0), put(nativeToo, false, 1)}, put(native, true, 2),
		},
	} {
		for _, how := range []struct {
			crash   bool
			maxKeys int
		}{{true, 0}, {false, 0}, {true, 1}, {false, 1}} {
			t.Run(fmt.Sprintf("%s, %+v", name, how), func(t *testing.T) {
				t.Parallel()
				prepare := func() (*env, image, image) {
					e := newEnv(t)
					e.maxKeys = how.maxKeys
					e.restart()
					a, b := e.image("a"), e.image("b")
					for _, op := range c.before {
						if err := op(t, e, a, b); err != nil {
							t.Fatal(err)
						}
					}
					e.records.writes = 0
					return e, a, b
				}
				e, a, b := prepare()
				if err := c.do(t, e, a, b); err != nil {
					t.Fatal(err)
				}
				writes, want := e.records.writes, lines(e.state(t))
				if writes == 0 {
					t.Fatal("the operation does not write")
				}
				for n := range writes {
					e, a, b := prepare()
					e.records.allow = n
					if err := c.do(t, e, a, b); !errors.Is(err, errStopped) {
						t.Fatalf("after %d of %d writes: got %v, want %v", n, writes, err, errStopped)
					}
					e.Collect(t)
					if how.crash {
						e.restart()
						e.load(t)
						e.wantSound(t)
					} else {
						e.records.allow = -1
					}
					if err := c.do(t, e, a, b); err != nil {
						t.Fatalf("repeating after %d of %d writes: %v", n, writes, err)
					}
					e.wantSound(t)
					if got := lines(e.state(t)); got != want {
						t.Errorf("repeating after %d of %d writes: got\n%swant\n%s", n, writes, got, want)
					}
				}
			})
		}
	}
}

// TestInterruptedMoveOfATag interrupts a pull that moves a tag after any number of writes. A start takes none of them for
// the work of another tool, because that moves the keys of other targets, too.
func TestInterruptedMoveOfATag(t *testing.T) {
	type pulled struct {
		target runtimeplatform.Target
		image  string
		// tagOnly leaves out the key of the digest, as the adoption of a tag does.
		tagOnly bool
	}
	for name, before := range map[string][]pulled{
		"the only key":                               {{nativeToo, "a", false}},
		"a new key beside another target's":          {{native, "a", false}},
		"a key beside that of the same digest":       {{nativeToo, "a", false}, {native, "a", false}},
		"a key older than another target's":          {{nativeToo, "a", false}, {native, "b", false}},
		"a key newer than another target's":          {{native, "a", false}, {nativeToo, "b", false}},
		"a key beside other platforms'":              {{native, "a", false}, {foreign, "b", false}, {foreignToo, "a", false}},
		"an adopted key":                             {{nativeToo, "a", true}},
		"an adopted key beside another target's":     {{nativeToo, "a", true}, {native, "a", true}},
		"an adopted key newer than another target's": {{native, "a", true}, {nativeToo, "b", true}},
	} {
		for _, maxKeys := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, %d keys a record", name, maxKeys), func(t *testing.T) {
				t.Parallel()
				for n := 0; ; n++ {
					e := newEnv(t)
					e.maxKeys = maxKeys
					e.restart()
					for at, p := range before {
						e.pull(t, tag, e.image(p.image), p.target, at, "")
						if p.tagOnly {
							e.remove(t, entries(tag, e.image(p.image), p.target, at)[0].Key)
						}
					}
					keys := e.store.ByRef(tag)
					e.records.allow = n
					ctx, done := e.Lease(t)
					moved := e.image("moved")
					e.place(ctx, t, moved, nativeToo)
					_, err := e.store.Put(e.ctx, "", entries(tag, moved, nativeToo, len(before))...)
					if err != nil && !errors.Is(err, errStopped) {
						t.Fatal(err)
					}
					done()
					e.Collect(t)
					e.restart()
					if unaccounted := e.load(t); slices.Contains(unaccounted, tag) {
						t.Errorf("after %d writes: no key accounts for the tag", n)
					}
					for _, k := range keys {
						if got, ok := e.store.Get(k.Key); k.Target != nativeToo && (!ok || got.Root.Digest != k.Root.Digest) {
							t.Errorf("after %d writes: key %s has digest %s, want %s", n, k.Key, got.Root.Digest, k.Root.Digest)
						}
					}
					e.wantSound(t)
					if err == nil {
						return
					}
				}
			})
		}
	}
}
