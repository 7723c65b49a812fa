package pin

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

var lockID = ID{Scope: policy.LockScope, Ref: ref}

// locked returns the pin of a lock.
func locked(name, text string) Pin {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return Pin{ID: ID{Scope: policy.LockScope, Ref: name}, Root: root(text), By: ByLock, Retain: true, MadeAt: at, UsedAt: at}
}

// lockPins returns the number of pins of the lock.
func (e *env) lockPins() int {
	return len(slices.DeleteFunc(e.List(), func(p Pin) bool { return p.Scope != policy.LockScope }))
}

func named(t *testing.T) reference.Named {
	t.Helper()
	r, err := reference.ParseNamed(ref)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// wantConsistent fails the test unless the counts of the pins are those of the pins.
func (e *env) wantConsistent(t *testing.T) {
	t.Helper()
	e.Store.mu.RLock()
	defer e.Store.mu.RUnlock()
	want := newTable()
	for _, p := range e.Store.pins {
		want.add(p)
	}
	wantEqual(t, "retained", e.Store.retained, want.retained)
	roots := make(map[digest.Digest]bool)
	for _, p := range e.lock.list() {
		roots[p.Root.Digest] = true
	}
	e.Store.lock.mu.RLock()
	defer e.Store.lock.mu.RUnlock()
	if !maps.Equal(roots, e.Store.lock.roots) {
		t.Errorf("the lock has digests %v, want %v", e.Store.lock.roots, roots)
	}
	proofs := make(map[string]int)
	for _, p := range e.Store.lock.pins {
		for _, proof := range p.Proofs {
			proofs[proof.MAC]++
		}
	}
	if !maps.Equal(proofs, e.Store.lock.proofs) {
		t.Errorf("the lock has proofs %v, want %v", e.Store.lock.proofs, proofs)
	}
	wantEqual(t, "proofs", e.Store.proofs, want.proofs)
	wantEqual(t, "pins of namespaces", e.Store.perNamespace, want.perNamespace)
	wantEqual(t, "references", e.Store.byRef, want.byRef)
}

// TestSetLock checks which pins and digests a lock has after it was replaced, and that nothing is written.
func TestSetLock(t *testing.T) {
	e := newEnv(t, 0)
	must(t)(e.MakeForNamespace(e.ctx, "", ID{Scope: policy.NodeScope, Ref: ref}, root("one"), ByUse, true))
	wrote := e.wrote
	e.SetLock([]Pin{locked(ref, "one"), locked("registry.example/tool:1", "two")}, []digest.Digest{root("kept").Digest})
	e.wantConsistent(t)
	for text, want := range map[string][2]bool{ // retained, and of the lock
		"one": {true, true}, "two": {true, true}, "kept": {true, true}, "other": {false, false},
	} {
		d := root(text).Digest
		if got := [2]bool{e.Retains(d), e.HasRoot(d)}; got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
	wantEqual(t, "pins of the lock", e.lockPins(), 2)
	e.SetLock([]Pin{locked(ref, "three")}, nil)
	e.wantConsistent(t)
	if got, want := e.Retained(), []digest.Digest{root("one").Digest, root("three").Digest}; !slices.Equal(got, sorted(want)) {
		t.Errorf("retained %v", got)
	}
	if e.HasRoot(root("one").Digest) {
		t.Error("a digest of another pin belongs to the lock")
	}
	e.SetLock(nil, nil)
	e.wantConsistent(t)
	if got := e.Retained(); len(got) != 1 || e.lockPins() != 0 {
		t.Errorf("without a lock: retained %v", got)
	}
	if p, ok := e.Get(ID{Scope: policy.NodeScope, Ref: ref}); !ok || p.Root.Digest != root("one").Digest {
		t.Errorf("the pin of the node: %+v", p)
	}
	wantEqual(t, "writes", e.wrote, wrote)
	wantEqual(t, "events", e.notified, []string{"made " + ref})
}

func sorted(all []digest.Digest) []digest.Digest { slices.Sort(all); return all }

// TestSetLockKeepsUse checks that the use, drift and proofs of a reference survive another lock with the same digest, and only
// that.
func TestSetLockKeepsUse(t *testing.T) {
	e := newEnv(t, 0)
	e.SetLock([]Pin{locked(ref, "one")}, nil)
	for _, err := range []error{
		e.Touch(e.ctx, lockID), e.RecordDrift(e.ctx, lockID, root("new").Digest), e.Prove(e.ctx, named(t), root("one").Digest, Proof{MAC: "proof"}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, "events", e.notified, []string{"drifted " + ref})
	e.SetLock([]Pin{locked(ref, "one"), locked("registry.example/tool:1", "two")}, nil)
	if p, _ := e.OfLock(ref); p.Drift == nil || !p.UsedAt.After(p.MadeAt) || !e.HasProof("proof") {
		t.Errorf("the same digest: %+v", p)
	}
	e.SetLock([]Pin{locked(ref, "two")}, nil)
	if p, _ := e.OfLock(ref); p.Drift != nil || !p.UsedAt.Equal(p.MadeAt) || e.HasProof("proof") {
		t.Errorf("another digest: %+v", p)
	}
	wantEqual(t, "writes", e.wrote, 0)
	e.wantConsistent(t)
}

// TestLockedIsReadOnly checks that only SetLock changes what a lock decides.
func TestLockedIsReadOnly(t *testing.T) {
	for name, change := range map[string]func(e *env, p Pin) error{
		"make": func(e *env, _ Pin) error {
			_, err := e.MakeForNamespace(e.ctx, "", ID{policy.LockScope, "registry.example/new:1"}, root("one"), ByUse, true)
			return err
		},
		"move":          func(e *env, _ Pin) error { _, err := e.Move(e.ctx, lockID, root("two"), ByOperator, true); return err },
		"do not retain": func(e *env, _ Pin) error { _, err := e.Move(e.ctx, lockID, root("one"), ByLock, false); return err },
		"take over":     func(e *env, _ Pin) error { _, err := e.Move(e.ctx, lockID, root("one"), ByOperator, true); return err },
		"move a read one": func(e *env, p Pin) error {
			_, err := e.MoveUnchanged(e.ctx, p, root("two"), ByOperator, true)
			return err
		},
		"refresh": func(e *env, p Pin) error { _, err := e.Refresh(e.ctx, p, root("two"), true); return err },
		"remove":  func(e *env, _ Pin) error { _, err := e.Remove(e.ctx, lockID); return err },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, 0)
			e.SetLock([]Pin{locked(ref, "one")}, nil)
			before, _ := e.OfLock(ref)
			var known *imagepin.Error
			if err := change(e, before); !errors.As(err, &known) || known.Reason != imagepin.LockedReference || !errdefs.IsFailedPrecondition(err) {
				t.Errorf("got %v", err)
			}
			if after, _ := e.OfLock(ref); after.Root.Digest != before.Root.Digest || after.By != before.By || !after.Retain || e.wrote != 0 {
				t.Errorf("%+v, %d writes", after, e.wrote)
			}
			e.wantConsistent(t)
		})
	}
	e := newEnv(t, 0)
	e.SetLock([]Pin{locked(ref, "one")}, nil)
	if p := must(t)(e.MakeForNamespace(e.ctx, "", lockID, root("two"), ByUse, false)); p.Root.Digest != root("one").Digest {
		t.Errorf("a use got %+v", p)
	}
}

// TestLockedWithoutCap checks that pins of the lock neither count for a cap, nor expire, nor are evicted.
func TestLockedWithoutCap(t *testing.T) {
	e := newEnv(t, 1)
	e.config.InUse = func(context.Context) (map[ID]bool, error) { return nil, nil }
	var pins []Pin
	for _, name := range []string{"a", "b", "c"} {
		pins = append(pins, locked("registry.example/"+name+":1", name))
	}
	e.SetLock(pins, nil)
	wantEqual(t, "pins of namespaces", len(e.Namespaces()), 0)
	for _, name := range []string{"x", "y"} {
		must(t)(e.MakeForNamespace(e.ctx, "", ID{Scope: policy.NodeScope, Ref: "registry.example/" + name + ":1"}, root(name), ByUse, false))
	}
	wantEqual(t, "pins", len(e.List()), 4) // one was evicted for y
	if err := e.Expire(e.ctx, time.Now().Add(time.Hour), func(ID) bool { return false }, KeepNone); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "pins after all have expired", len(e.List()), 3)
	wantEqual(t, "pins of the lock", e.lockPins(), 3)
}

// TestLoadKeepsLock checks that a reload neither loses the pins of the lock, nor reads their record as a pin.
func TestLoadKeepsLock(t *testing.T) {
	e := newEnv(t, 0)
	e.SetLock([]Pin{locked(ref, "one")}, []digest.Digest{root("kept").Digest})
	if _, err := e.node.Images.Create(namespaced(e.ctx), images.Image{Name: LockRecord, Target: root("blob")}); err != nil {
		t.Fatal(err)
	}
	if err := e.Load(e.ctx); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "unreadable pins", len(e.ignored), 0)
	wantEqual(t, "pins", len(e.List()), 1)
	if p, ok := e.OfLock(ref); !ok || p.Root.Digest != root("one").Digest || !e.Retains(root("kept").Digest) || e.Retains(root("blob").Digest) {
		t.Errorf("pin %+v, retained %v", p, e.Retained())
	}
	e.wantConsistent(t)
}

// TestSetLockConcurrently replaces the lock beside all that uses its pins, for the race detector. The counts are right afterwards,
// and the pin is that of the last lock.
func TestSetLockConcurrently(t *testing.T) {
	e := newEnv(t, 0)
	node := ID{Scope: policy.NodeScope, Ref: ref}
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 20 {
				text := []string{"one", "two"}[(n+i)%2]
				e.SetLock([]Pin{locked(ref, text)}, []digest.Digest{root("kept").Digest})
				_, err := e.MakeForNamespace(e.ctx, "", ID{Scope: policy.NodeScope, Ref: "registry.example/" + string(rune('a'+i)) + ":1"}, root(text), ByUse, true)
				for _, err := range []error{
					err, e.Touch(e.ctx, lockID), e.RecordDrift(e.ctx, lockID, root("new").Digest), e.RecordDrift(e.ctx, node, root("new").Digest),
					e.Prove(e.ctx, named(t), root(text).Digest, Proof{MAC: "proof"}), e.Load(e.ctx),
					e.Expire(e.ctx, time.Now().Add(-time.Hour), func(ID) bool { return false }, KeepNone),
				} {
					if err != nil {
						t.Error(err)
					}
				}
				if p, ok := e.OfLock(ref); !ok || p.By != ByLock || !p.Retain {
					t.Errorf("pin %+v", p)
				}
			}
		})
	}
	all.Wait()
	e.wantConsistent(t)
	wantEqual(t, "pins of the lock", e.lockPins(), 1)
	e.SetLock([]Pin{locked(ref, "last")}, nil)
	if p, _ := e.OfLock(ref); p.Root.Digest != root("last").Digest || p.Drift != nil {
		t.Errorf("pin %+v", p)
	}
	e.wantConsistent(t)
}
