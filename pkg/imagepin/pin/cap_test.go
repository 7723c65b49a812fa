package pin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

func mustParse(t *testing.T, ref string) reference.Named {
	t.Helper()
	named, err := reference.ParseNamed(ref)
	if err != nil {
		t.Fatal(err)
	}
	return named
}

// capped is an env with a cap on pins, and a list of pins in use.
type capped struct {
	*env
	used map[ID]bool
	// onInUse is called by each InUse call.
	onInUse func()
}

func newCapped(t *testing.T, max int) *capped {
	c := &capped{env: newEnv(t, max), used: make(map[ID]bool)}
	c.config.InUse = func(context.Context) (map[ID]bool, error) {
		if c.onInUse != nil {
			c.onInUse()
		}
		return c.used, nil
	}
	return c
}

func nodeID(name string) ID {
	return ID{Scope: policy.NodeScope, Ref: "registry.example/" + name + ":1"}
}

func workloadID(namespace, name string) ID {
	return ID{Scope: policy.WorkloadScope(namespace, "hash", name), Ref: "registry.example/" + name + ":1"}
}

func wantFull(t *testing.T, what string, err error) {
	t.Helper()
	var known *imagepin.Error
	if !errors.As(err, &known) || known.Reason != imagepin.PinLimitReached {
		t.Errorf("%s: got %v, want reason PinLimitReached", what, err)
	}
}

// wantPins checks that exactly these pins exist, also after a restart.
func (c *capped) wantPins(t *testing.T, ids ...ID) {
	t.Helper()
	for range 2 {
		wantEqual(t, "pins", len(c.List()), len(ids))
		for _, id := range ids {
			if _, ok := c.Get(id); !ok {
				t.Errorf("%s is missing", id)
			}
		}
		c.reload(t)
	}
}

// TestEvict makes pins while the cap is full. Unused pins made by use are evicted, the least recently used first and
// retaining pins last. Operator pins and pins in use stay. If only those are left, making a pin fails.
func TestEvict(t *testing.T) {
	c := newCapped(t, 4)
	for _, name := range []string{"operator", "kept", "old", "older"} {
		by, retain := ByUse, name == "kept"
		if name == "operator" {
			by = ByOperator
		}
		must(t)(c.MakeForNamespace(c.ctx, "", nodeID(name), root(name), by, retain))
	}
	for name, days := range map[string]int{"operator": 9, "kept": 8, "older": 3, "old": 2} {
		c.age(t, nodeID(name), time.Duration(days)*24*time.Hour)
	}
	c.notified = nil
	make := func(name string) error {
		_, err := c.MakeForNamespace(c.ctx, "", nodeID(name), root(name), ByUse, false)
		return err
	}
	for _, name := range []string{"a", "b"} {
		if err := make(name); err != nil {
			t.Fatal(err)
		}
		c.used[nodeID(name)] = true
	}
	wantEqual(t, "notified", c.notified, []string{
		"evicted registry.example/older:1", "made registry.example/a:1", "evicted registry.example/old:1", "made registry.example/b:1",
	})
	if err := make("c"); err != nil {
		t.Fatal(err)
	}
	c.used[nodeID("c")] = true
	c.wantPins(t, nodeID("operator"), nodeID("a"), nodeID("b"), nodeID("c"))
	wantFull(t, "a cap full of pins in use", make("d"))
	_, err := c.Move(c.ctx, nodeID("d"), root("d"), ByOperator, false)
	wantFull(t, "an operator's pin with a full cap", err)
	if err := make("a"); err != nil {
		t.Errorf("an existing pin: %v", err)
	}
	delete(c.used, nodeID("b"))
	must(t)(c.Move(c.ctx, nodeID("d"), root("d"), ByOperator, false))
	c.wantPins(t, nodeID("operator"), nodeID("a"), nodeID("c"), nodeID("d"))
}

// TestEvictOnlyOwn checks that a namespace that fills its cap with workload and node pins does not evict pins of other
// namespaces or of the node.
func TestEvictOnlyOwn(t *testing.T) {
	c := newCapped(t, 2)
	must(t)(c.MakeForNamespace(c.ctx, "", nodeID("system"), root("system"), ByUse, false))
	must(t)(c.MakeForNamespace(c.ctx, "till", nodeID("till"), root("till"), ByUse, false))
	must(t)(c.MakeForNamespace(c.ctx, "till", workloadID("till", "t"), root("t"), ByUse, false))
	for i := range 5 {
		must(t)(c.MakeForNamespace(c.ctx, "shop", nodeID(fmt.Sprint("shop", i)), root("shop"), ByUse, false))
		must(t)(c.MakeForNamespace(c.ctx, "shop", workloadID("shop", fmt.Sprint("w", i)), root("shop"), ByUse, false))
	}
	c.wantPins(t, nodeID("system"), nodeID("till"), workloadID("till", "t"), nodeID("shop4"), workloadID("shop", "w4"))
	c.used[nodeID("shop4")], c.used[workloadID("shop", "w4")] = true, true
	_, err := c.MakeForNamespace(c.ctx, "shop", nodeID("more"), root("more"), ByUse, false)
	wantFull(t, "a namespace whose pins are all in use", err)
	must(t)(c.MakeForNamespace(c.ctx, "", nodeID("more"), root("more"), ByUse, false))
	p, _ := c.Get(nodeID("shop4"))
	wantEqual(t, "cap namespace", p.capNamespace(), "shop")
	p = must(t)(c.Move(c.ctx, nodeID("shop4"), root("by hand"), ByOperator, false))
	wantEqual(t, "cap namespace of an operator's pin", p.capNamespace(), "")
	must(t)(c.MakeForNamespace(c.ctx, "shop", nodeID("another"), root("another"), ByUse, false))
}

// TestEvictRechecks uses and removes pins during InUse, which is called without a lock.
func TestEvictRechecks(t *testing.T) {
	c := newCapped(t, 2)
	must(t)(c.MakeForNamespace(c.ctx, "", nodeID("a"), root("a"), ByUse, false))
	must(t)(c.MakeForNamespace(c.ctx, "", nodeID("b"), root("b"), ByUse, false))
	c.onInUse = func() {
		c.onInUse = nil
		must(t)(c.MakeForNamespace(c.ctx, "", nodeID("a"), root("a"), ByUse, false)) // uses a on the day it was made
	}
	must(t)(c.MakeForNamespace(c.ctx, "", nodeID("c"), root("c"), ByUse, false))
	c.wantPins(t, nodeID("a"), nodeID("c"))
	c.onInUse = func() {
		c.onInUse = nil
		must(t)(c.Remove(c.ctx, nodeID("a")))
	}
	must(t)(c.MakeForNamespace(c.ctx, "", nodeID("d"), root("d"), ByUse, false))
	c.wantPins(t, nodeID("c"), nodeID("d"))

	failed := errors.New("the CRI is unavailable")
	c.config.InUse = func(context.Context) (map[ID]bool, error) { return nil, failed }
	_, err := c.MakeForNamespace(c.ctx, "", nodeID("e"), root("e"), ByUse, false)
	wantFull(t, "without the CRI", err)
	if !errors.Is(err, failed) {
		t.Errorf("the error does not wrap its cause: %v", err)
	}
	c.wantPins(t, nodeID("c"), nodeID("d"))
}

// TestCapWithConcurrentMakes makes pins concurrently and checks that there are never more than the cap.
func TestCapWithConcurrentMakes(t *testing.T) {
	const most, makers = 5, 40
	e := newEnv(t, most)
	var wg sync.WaitGroup
	for i := range makers {
		wg.Go(func() {
			_, err := e.MakeForNamespace(e.ctx, "", nodeID(fmt.Sprint(i)), root("one"), ByUse, false)
			var known *imagepin.Error
			if err != nil && (!errors.As(err, &known) || known.Reason != imagepin.PinLimitReached) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantEqual(t, "pins", len(e.List()), most)

	c := newCapped(t, most)
	for i := range makers {
		wg.Go(func() {
			if _, err := c.MakeForNamespace(c.ctx, "", nodeID(fmt.Sprint(i)), root("one"), ByUse, false); err != nil {
				t.Error(err)
			}
			if n := len(c.List()); n > most {
				t.Errorf("got %d pins, want at most %d", n, most)
			}
		})
	}
	wg.Wait()
	wantEqual(t, "pins", len(c.List()), most)
}

// TestExpireRechecks checks that a pin stays if it is used between the listing of the pins and its removal.
func TestExpireRechecks(t *testing.T) {
	for _, use := range []string{"touch", "make", "in use"} {
		t.Run(use, func(t *testing.T) {
			e := newEnv(t, 0)
			id := nodeID("a")
			must(t)(e.MakeForNamespace(e.ctx, "", id, root("a"), ByUse, false))
			e.age(t, id, 40*24*time.Hour)
			// The first call is after the listing, and the second call is under the mutex of the pin.
			calls := 0
			inUse := func(ID) bool {
				if calls++; calls > 1 {
					return use == "in use"
				}
				switch use {
				case "touch":
					if err := e.Touch(e.ctx, id); err != nil {
						t.Error(err)
					}
				case "make":
					must(t)(e.MakeForNamespace(e.ctx, "", id, root("a"), ByUse, false))
				}
				return false
			}
			if err := e.Expire(e.ctx, time.Now().Add(-30*24*time.Hour), inUse, KeepNone); err != nil {
				t.Fatal(err)
			}
			if _, ok := e.Get(id); !ok {
				t.Error("a used pin has expired")
			}
		})
	}
}

// TestEvictRetaining removes the pins of the least recently used digests of which all pins may go: nothing uses them, no operator has
// set one, and they count against namespaces that give way. It removes none if that is not enough.
func TestEvictRetaining(t *testing.T) {
	c := newCapped(t, 0)
	days := map[string]int{"operator": 9, "other": 8, "used": 7, "shared": 6, "plain": 5, "old": 3, "new": 2}
	for name, old := range days {
		by := ByUse
		if name == "operator" {
			by = ByOperator
		}
		namespace := "evil"
		if name == "other" {
			namespace = "shop"
		}
		must(t)(c.MakeForNamespace(c.ctx, namespace, workloadID(namespace, name), root(name), by, name != "plain"))
		c.age(t, workloadID(namespace, name), time.Duration(old)*24*time.Hour)
	}
	// Another workload retains the same digest, and a container uses it. A second pin of an old digest goes with the first.
	must(t)(c.MakeForNamespace(c.ctx, "shop", workloadID("shop", "shared"), root("shared"), ByUse, true))
	must(t)(c.MakeForNamespace(c.ctx, "evil", workloadID("evil", "old2"), root("old"), ByUse, true))
	c.age(t, workloadID("evil", "old2"), 3*24*time.Hour)
	c.used[workloadID("evil", "used")] = true
	evil := func(namespace string) bool { return namespace == "evil" }
	frees := func(n int) func([]digest.Digest) bool {
		return func(freed []digest.Digest) bool { return len(freed) >= n }
	}
	for _, step := range []struct {
		need int
		want []string
	}{
		{3, nil}, // all or none
		{1, []string{"evicted registry.example/old2:1", "evicted registry.example/old:1"}},
		{1, []string{"evicted registry.example/new:1"}},
		{1, nil},
	} {
		c.notified = nil
		evicted, err := c.EvictRetaining(c.ctx, evil, frees(step.need))
		if err != nil || evicted != (step.want != nil) {
			t.Errorf("evicted %v, %v, want %q", evicted, err, step.want)
		}
		slices.Sort(c.notified)
		wantEqual(t, "notified", c.notified, step.want)
	}
	must(t)(c.MakeForNamespace(c.ctx, "evil", workloadID("evil", "busy"), root("busy"), ByUse, true))
	c.onInUse = func() { // a pod uses the pin meanwhile
		if err := c.Touch(c.ctx, workloadID("evil", "busy")); err != nil {
			t.Error(err)
		}
	}
	if evicted, err := c.EvictRetaining(c.ctx, evil, frees(1)); err != nil || evicted {
		t.Errorf("a pin that was used meanwhile: evicted %v, %v", evicted, err)
	}
	c.wantPins(t, workloadID("evil", "operator"), workloadID("shop", "other"), workloadID("evil", "used"), workloadID("evil", "shared"),
		workloadID("shop", "shared"), workloadID("evil", "plain"), workloadID("evil", "busy"))
}
