package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// separate replaces the store with one that adopts several images at a time, with a call before each write of a record.
func (e *env) separate(atATime int, before func(record string) error) {
	c := *e.store.Configuration()
	c.AdoptAtATime = atATime
	c.Records = ctdtest.Records{Store: ctdtest.Images{Store: e.Images, Before: func(_ context.Context, call ctdtest.Call) error {
		if slices.Contains([]string{"Create", "Update", "Delete"}, call.Method) {
			return before(call.Name)
		}
		return nil
	}}}
	e.store = New(c)
}

// enough is a time that passes only if the test fails.
const enough = 10 * time.Second

// TestAdoptSeveralAtATime checks that images are recorded at the same time, and tags of one image one after the other. All get the
// keys that they get in one transaction.
func TestAdoptSeveralAtATime(t *testing.T) {
	const atATime = 3
	e := newEnv(t)
	ctx, done := e.Lease(t)
	defer done()
	var all []Adoption
	shared := e.image("shared")
	for i := range atATime {
		all = append(all, e.adoptionOf(ctx, t, fmt.Sprintf("registry.example/app%d:1", i), e.image(fmt.Sprint(i))))
		all = append(all, e.adoptionOf(ctx, t, fmt.Sprintf("registry.example/shared:%d", i), shared))
	}
	var (
		mu      sync.Mutex
		writing = make(map[string]int) // writes that have begun, by repository
		both    = make(chan struct{})  // closed when two images are written
	)
	e.separate(atATime, func(record string) error {
		repository, _, _ := strings.Cut(strings.TrimPrefix(record, "registry.example/"), ":")
		repository, _, _ = strings.Cut(repository, "@")
		mu.Lock()
		if writing[repository]++; len(writing) == 2 && writing[repository] == 1 {
			close(both)
		}
		mu.Unlock()
		select {
		case <-both:
			return nil
		case <-time.After(enough):
			return errors.New("no other image is written at the same time")
		}
	})
	change, err := e.store.Adopt(e.ctx, all...)
	if err != nil || !change.Wrote {
		t.Fatalf("got %+v, %v, want a write", change, err)
	}
	for _, a := range all {
		if got := e.store.ByRef(a.Image.Name); len(got) != 1 || got[0].Root.Digest != a.Image.Target.Digest {
			t.Errorf("%s: got %v, want %s", a.Image.Name, got, a.Image.Target.Digest)
		}
	}
	e.wantSound(t)
	separate := e.state(t)
	e.restart()
	e.load(t)
	for _, a := range all {
		if got := e.store.ByRef(a.Image.Name); len(got) != 1 {
			t.Errorf("%s after a restart: got %v, want a key", a.Image.Name, got)
		}
	}
	if d := diffStates(separate, e.state(t)); d != "" {
		t.Errorf("a restart changes the records:\n%s", d)
	}
}

func diffStates(before, after map[string]string) (d string) {
	for name, text := range before {
		if after[name] != text {
			d += fmt.Sprintf("%s: %q, after %q\n", name, text, after[name])
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			d += name + " is new\n"
		}
	}
	return d
}

// TestAdoptSeveralOfWhichOneFails checks that the others are adopted, and that the error is returned.
func TestAdoptSeveralOfWhichOneFails(t *testing.T) {
	e := newEnv(t)
	ctx, done := e.Lease(t)
	defer done()
	var all []Adoption
	for i := range 5 {
		all = append(all, e.adoptionOf(ctx, t, fmt.Sprintf("registry.example/app%d:1", i), e.image(fmt.Sprint(i))))
	}
	full := errors.New("no space left on device")
	e.separate(2, func(record string) error {
		if strings.Contains(record, "/app2") {
			return full
		}
		return nil
	})
	if _, err := e.store.Adopt(e.ctx, all...); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	for i, a := range all {
		if got := len(e.store.ByRef(a.Image.Name)); (got == 1) != (i != 2) {
			t.Errorf("%s has %d keys", a.Image.Name, got)
		}
	}
}
