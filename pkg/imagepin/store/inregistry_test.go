package store_test

import (
	"testing"
)

// TestInRegistry checks that only a key that a host of the same registry has resolved counts, with the same manifest.
func TestInRegistry(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	ctx, done := e.Lease(t)
	defer done()
	e.place(ctx, t, i, native)
	put := func(ref, host string) {
		t.Helper()
		made := entries(ref, i, native, 0)
		for n := range made {
			made[n].Host = host
		}
		if _, err := e.store.Put(e.ctx, "", made...); err != nil {
			t.Fatal(err)
		}
	}
	put("resolved.example/team/app:1", "mirror.example")
	put("copied.example/team/app:1", "") // as an apply does
	img := i.of(native)
	for registry, want := range map[string]bool{"resolved.example": true, "copied.example": false, "mirror.example": false, "resolved.exam": false, "example": false} {
		if got := e.store.InRegistry(img.Config.Digest, img.Manifest.Digest, registry); got != want {
			t.Errorf("%s: got %t, want %t", registry, got, want)
		}
	}
	if e.store.InRegistry(img.Config.Digest, i.arm.Manifest.Digest, "resolved.example") {
		t.Error("another manifest counts")
	}
}
