package pin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// listing is an image store that calls listed once, after it has read the records and before it returns them.
type listing struct {
	images.Store
	listed func()
	err    error // if set, List fails
}

func (l *listing) List(ctx context.Context, fs ...string) ([]images.Image, error) {
	all, err := l.Store.List(ctx, fs...)
	if run := l.listed; run != nil {
		l.listed = nil
		run()
	}
	if l.err != nil {
		return nil, l.err
	}
	return all, err
}

// loadDuring loads the pins again while they run, and calls during after the records are listed.
func (e *env) loadDuring(t *testing.T, during func()) {
	t.Helper()
	all := e.config.Images
	e.config.Images = &listing{Store: all, listed: during}
	err := e.Load(e.ctx)
	e.config.Images = all
	if err != nil {
		t.Fatal(err)
	}
}

// delete deletes the record of a pin, as another process does.
func (e *env) delete(t *testing.T, id ID) {
	t.Helper()
	if err := e.node.Images.Delete(namespaced(e.ctx), id.String()); err != nil {
		t.Fatal(err)
	}
}

// state describes everything that a table has, with the times and uses of pins as their records have them.
func state(t *testing.T, s *table) string {
	t.Helper()
	var pins []string
	for _, p := range s.List() {
		pins = append(pins, fmt.Sprint(recordOf(t, p)))
	}
	var unreadable []string
	for _, record := range slices.Sorted(maps.Keys(s.ignored)) {
		unreadable = append(unreadable, record+": "+s.ignored[record].err.Error())
	}
	return fmt.Sprintln(pins, unreadable, s.byRef, s.retained, s.proofs, s.perNamespace)
}

// wantRecorded checks that the pins are those that a restart reads.
func (e *env) wantRecorded(t *testing.T) {
	t.Helper()
	got := state(t, e.Store.table)
	restarted := New(e.config)
	if err := restarted.Load(e.ctx); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "pins", got, state(t, restarted.table))
}

// TestLoadDuringCalls changes a pin after Load has listed its record. The change stays in effect, and the next use does
// not move the pin.
func TestLoadDuringCalls(t *testing.T) {
	id, named := ID{Scope: policy.NodeScope, Ref: ref}, mustParse(t, ref)
	for _, test := range []struct {
		name   string
		before func(*env) // before the records are listed
		during func(*env) error
		want   string // digest of the pin, "" for none
	}{
		{"made", nil, func(e *env) error {
			_, err := e.MakeForNamespace(e.ctx, "shop", id, root("one"), ByUse, true)
			return err
		}, "one"},
		{"moved", func(e *env) { must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true)) }, func(e *env) error {
			_, err := e.Move(e.ctx, id, root("two"), ByOperator, true)
			return err
		}, "two"},
		{"moved and moved back", func(e *env) { must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true)) }, func(e *env) error {
			_, err := e.Move(e.ctx, id, root("two"), ByOperator, true)
			if err == nil {
				_, err = e.Move(e.ctx, id, root("one"), ByOperator, true)
			}
			return err
		}, "one"},
		{"retained", func(e *env) { must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, false)) }, func(e *env) error {
			_, err := e.Move(e.ctx, id, root("one"), ByOperator, true)
			return err
		}, "one"},
		{"drifted", func(e *env) { must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, false)) }, func(e *env) error {
			return e.RecordDrift(e.ctx, id, root("two").Digest)
		}, "one"},
		{"proved", func(e *env) { must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true)) }, func(e *env) error {
			return e.Prove(e.ctx, named, root("one").Digest, Proof{MAC: "mac"})
		}, "one"},
		{"removed", func(e *env) { must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true)) }, func(e *env) error {
			_, err := e.Store.Remove(e.ctx, id)
			return err
		}, ""},
		{"removed and made", func(e *env) { must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true)) }, func(e *env) error {
			_, err := e.Store.Remove(e.ctx, id)
			if err == nil {
				_, err = e.MakeForNamespace(e.ctx, "", id, root("two"), ByUse, false)
			}
			return err
		}, "two"},
		{"made and removed", nil, func(e *env) error {
			_, err := e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true)
			if err == nil {
				_, err = e.Store.Remove(e.ctx, id)
			}
			return err
		}, ""},
		{"made over a damaged record", func(e *env) {
			must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
			e.write(t, id, map[string]string{labelVersion: "one"})
			e.reload(t)
		}, func(e *env) error {
			_, err := e.MakeForNamespace(e.ctx, "", id, root("two"), ByUse, false)
			return err
		}, "two"},
		{"removal of a record of a newer release", func(e *env) {
			must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
			e.write(t, id, map[string]string{labelVersion: "2"})
			e.reload(t)
		}, func(e *env) error {
			_, err := e.Store.Remove(e.ctx, id)
			return err
		}, ""},
		{"repair of a record that was gone", func(e *env) {
			must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
			e.delete(t, id)
		}, func(e *env) error {
			_, err := e.Repair(e.ctx, Finding{Record: id.String(), id: id})
			return err
		}, "one"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnv(t, 0)
			must(t)(e.MakeForNamespace(e.ctx, "", ID{Scope: policy.NodeScope, Ref: "registry.example/other:1"}, root("other"), ByUse, true))
			if test.before != nil {
				test.before(e)
			}
			e.loadDuring(t, func() {
				if err := test.during(e); err != nil {
					t.Error(err)
				}
			})
			p, ok := e.Get(id)
			wantEqual(t, "pinned", ok, test.want != "")
			e.wantRecorded(t)
			if ok {
				wantEqual(t, "digest", p.Root.Digest, root(test.want).Digest)
				next := must(t)(e.MakeForNamespace(e.ctx, "", id, root("next"), ByUse, false))
				wantEqual(t, "digest of the next use", next.Root.Digest, p.Root.Digest)
			}
			e.loadDuring(t, func() {}) // the calls of an earlier Load have no effect
			e.wantRecorded(t)
		})
	}
}

// TestLoadDuringARepair loads the pins after Repair has read the pin and before it writes the record that is gone. The
// record and the active pin are both there afterwards.
func TestLoadDuringARepair(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.NodeScope, Ref: ref}
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
	e.delete(t, id)
	all := e.config.Images
	e.config.Images = ctdtest.Images{Store: all, Before: ctdtest.On("Get", func(string) error {
		e.config.Images = all
		return e.Load(e.ctx)
	})}
	if _, err := e.Repair(e.ctx, Finding{Record: id.String(), id: id}); err != nil {
		t.Fatal(err)
	}
	p, _ := e.Get(id)
	wantEqual(t, "digest", p.Root.Digest, root("one").Digest)
	e.wantRecorded(t)
}

// TestLoadOfChangedRecords changes records as another process does. Load follows them, also if a call uses the pin at
// the same time, which changes nothing in its record.
func TestLoadOfChangedRecords(t *testing.T) {
	id := ID{Scope: policy.NodeScope, Ref: ref}
	for name, change := range map[string]func(*testing.T, *env){
		"removed": func(t *testing.T, e *env) { e.delete(t, id) },
		"damaged": func(t *testing.T, e *env) { e.write(t, id, map[string]string{labelVersion: "one"}) },
		"newer":   func(t *testing.T, e *env) { e.write(t, id, map[string]string{labelVersion: "2"}) },
		"label":   func(t *testing.T, e *env) { e.write(t, id, map[string]string{labelRetain: ""}) },
		"digest": func(t *testing.T, e *env) {
			img := images.Image{Name: id.String(), Target: root("two")}
			if _, err := e.node.Images.Update(namespaced(e.ctx), img, "target"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, 0)
			must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
			change(t, e)
			e.loadDuring(t, func() {
				if err := e.Touch(e.ctx, id); err != nil {
					t.Error(err)
				}
			})
			e.wantRecorded(t)
		})
	}
}

// TestLoadKeepsUse checks that a Load while imagepin runs keeps the time of the last use, of which the record only has
// the day: uses before the Load and during it.
func TestLoadKeepsUse(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.NodeScope, Ref: ref}
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, false))
	touch := func() {
		if err := e.Touch(e.ctx, id); err != nil {
			t.Error(err)
		}
	}
	touch()
	var used Pin
	for _, during := range []func(){func() {}, touch} {
		e.loadDuring(t, func() {
			during()
			used, _ = e.Get(id)
		})
		p, _ := e.Get(id)
		wantEqual(t, "last use", p.UsedAt.Equal(used.UsedAt), true)
	}
}

// TestLoadFails checks that a Load that fails changes no pin, and that calls during it do not affect a later Load.
func TestLoadFails(t *testing.T) {
	e := newEnv(t, 0)
	id, made := ID{Scope: policy.NodeScope, Ref: ref}, ID{Scope: policy.NodeScope, Ref: "registry.example/made:1"}
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
	e.delete(t, id)
	all, failed := e.config.Images, errors.New("no list")
	e.config.Images = &listing{Store: all, err: failed, listed: func() {
		must(t)(e.MakeForNamespace(e.ctx, "", made, root("two"), ByUse, true))
	}}
	before := state(t, e.Store.table)
	err := e.Load(e.ctx)
	e.config.Images = all
	if !errors.Is(err, failed) {
		t.Fatalf("got %v, want %v", err, failed)
	}
	must(t)(e.Store.Remove(e.ctx, made))
	wantEqual(t, "pins", state(t, e.Store.table), before)
	must(t)(e.MakeForNamespace(e.ctx, "", made, root("two"), ByUse, true))
	e.delete(t, made)
	e.loadDuring(t, func() {})
	e.wantRecorded(t)
	wantEqual(t, "pins", len(e.List()), 0)
}

// TestLoadsAtOnce starts a second Load while the first one has listed a record that is deleted meanwhile. The earlier
// list does not replace the later one.
func TestLoadsAtOnce(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.NodeScope, Ref: ref}
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
	synctest.Test(t, func(t *testing.T) {
		var (
			second sync.WaitGroup
			cancel func()
		)
		e.ctx, cancel = context.WithCancel(e.ctx) // its channel is of the bubble
		defer cancel()
		load := func() {
			if err := e.Load(e.ctx); err != nil {
				t.Error(err)
			}
		}
		e.config.Images = &listing{Store: e.config.Images, listed: func() {
			e.delete(t, id)
			second.Go(load)
			synctest.Wait()
		}}
		load()
		second.Wait()
		wantEqual(t, "pins", len(e.List()), 0)
	})
}

// TestLoadRace loads the pins again and again while calls make, use, move and remove pins. The pins are those that are
// recorded, and no use moves a pin.
func TestLoadRace(t *testing.T) {
	e := newEnv(t, 0)
	var calls, loads sync.WaitGroup
	ended := make(chan struct{})
	loads.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				if err := e.Load(e.ctx); err != nil {
					t.Error(err)
				}
			}
		}
	})
	ok := func(p Pin, err error) Pin {
		if err != nil {
			t.Error(err)
		}
		return p
	}
	for i := range 4 {
		id := ID{Scope: scopes[i%len(scopes)], Ref: fmt.Sprintf("registry.example/app%d:1", i)}
		calls.Go(func() {
			for n := range 10 {
				first, second := root(fmt.Sprint(n, "first")), root(fmt.Sprint(n, "second"))
				ok(e.MakeForNamespace(e.ctx, "", id, first, ByUse, true))
				p := ok(e.MakeForNamespace(e.ctx, "", id, second, ByUse, true))
				wantEqual(t, "digest of the second use", p.Root.Digest, first.Digest)
				ok(e.Move(e.ctx, id, second, ByOperator, n%2 == 0))
				if n%3 == 0 {
					ok(e.Store.Remove(e.ctx, id))
				} else {
					ok(e.Move(e.ctx, id, root(fmt.Sprint(n+1, "first")), ByRefresh, true))
				}
			}
		})
	}
	calls.Wait()
	close(ended)
	loads.Wait()
	e.wantRecorded(t)
}
