package pin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/distribution/reference"

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

// capped is an env with a cap, that says what is in use.
type capped struct {
	*env
	used map[ID]bool
	// asked is called while it is asked what is in use.
	asked func()
}

func newCapped(t *testing.T, max int) *capped {
	c := &capped{env: newEnv(t, max), used: make(map[ID]bool)}
	c.InUse = func(context.Context) (map[ID]bool, error) {
		if c.asked != nil {
			c.asked()
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
		t.Errorf("%s: %v", what, err)
	}
}

// wantPins fails the test unless these are the pins there are, also after a restart.
func (c *capped) wantPins(t *testing.T, ids ...ID) {
	t.Helper()
	for range 2 {
		wantEqual(t, "pins", len(c.List()), len(ids))
		for _, id := range ids {
			if _, ok := c.Get(id); !ok {
				t.Errorf("%s is gone", id)
			}
		}
		c.reload(t)
	}
}

// TestEvict makes room in a full cap: pins made by use that nothing uses go, the one that was used longest ago first and those that
// retain last; those of an operator and those in use stay, and where there are no others the cap is full.
func TestEvict(t *testing.T) {
	c := newCapped(t, 4)
	for _, name := range []string{"operator", "kept", "old", "older"} {
		by, retain := ByUse, name == "kept"
		if name == "operator" {
			by = ByOperator
		}
		must(t)(c.Make(c.ctx, nodeID(name), root(name), by, retain))
	}
	for name, days := range map[string]int{"operator": 9, "kept": 8, "older": 3, "old": 2} {
		c.age(t, nodeID(name), time.Duration(days)*24*time.Hour)
	}
	c.told = nil
	make := func(name string) error {
		_, err := c.Make(c.ctx, nodeID(name), root(name), ByUse, false)
		return err
	}
	for _, name := range []string{"a", "b"} {
		if err := make(name); err != nil {
			t.Fatal(err)
		}
		c.used[nodeID(name)] = true
	}
	wantEqual(t, "told", c.told, []string{
		"evicted registry.example/older:1", "made registry.example/a:1", "evicted registry.example/old:1", "made registry.example/b:1",
	})
	if err := make("c"); err != nil {
		t.Fatal(err)
	}
	c.used[nodeID("c")] = true
	c.wantPins(t, nodeID("operator"), nodeID("a"), nodeID("b"), nodeID("c"))
	wantFull(t, "a cap full of pins in use", make("d"))
	_, err := c.Move(c.ctx, nodeID("d"), root("d"), ByOperator, false)
	wantFull(t, "the same for an operator", err)
	if err := make("a"); err != nil {
		t.Errorf("a pin that there is: %v", err)
	}
	delete(c.used, nodeID("b"))
	must(t)(c.Move(c.ctx, nodeID("d"), root("d"), ByOperator, false))
	c.wantPins(t, nodeID("operator"), nodeID("a"), nodeID("c"), nodeID("d"))
}

// TestEvictOnlyOwn has tenants fill their caps by pins of workloads and of the node scope: neither takes room from the other, or from
// the node.
func TestEvictOnlyOwn(t *testing.T) {
	c := newCapped(t, 2)
	must(t)(c.Make(c.ctx, nodeID("system"), root("system"), ByUse, false))
	must(t)(c.MakeFor(c.ctx, "till", nodeID("till"), root("till"), ByUse, false))
	must(t)(c.MakeFor(c.ctx, "till", workloadID("till", "t"), root("t"), ByUse, false))
	for i := range 5 {
		must(t)(c.MakeFor(c.ctx, "shop", nodeID(fmt.Sprint("shop", i)), root("shop"), ByUse, false))
		must(t)(c.MakeFor(c.ctx, "shop", workloadID("shop", fmt.Sprint("w", i)), root("shop"), ByUse, false))
	}
	c.wantPins(t, nodeID("system"), nodeID("till"), workloadID("till", "t"), nodeID("shop4"), workloadID("shop", "w4"))
	c.used[nodeID("shop4")], c.used[workloadID("shop", "w4")] = true, true
	_, err := c.MakeFor(c.ctx, "shop", nodeID("more"), root("more"), ByUse, false)
	wantFull(t, "a tenant that uses all of its pins", err)
	must(t)(c.Make(c.ctx, nodeID("more"), root("more"), ByUse, false))
	p, _ := c.Get(nodeID("shop4"))
	wantEqual(t, "payer", p.Payer(), "shop")
	p = must(t)(c.Move(c.ctx, nodeID("shop4"), root("by hand"), ByOperator, false))
	wantEqual(t, "payer of what an operator has set", p.Payer(), "")
	must(t)(c.MakeFor(c.ctx, "shop", nodeID("another"), root("another"), ByUse, false))
}

// TestEvictLooksAgain uses, and removes, pins while it is asked what is in use, with no lock held.
func TestEvictLooksAgain(t *testing.T) {
	c := newCapped(t, 2)
	must(t)(c.Make(c.ctx, nodeID("a"), root("a"), ByUse, false))
	must(t)(c.Make(c.ctx, nodeID("b"), root("b"), ByUse, false))
	c.asked = func() {
		c.asked = nil
		must(t)(c.Make(c.ctx, nodeID("a"), root("a"), ByUse, false)) // used, on the day that it was made
	}
	must(t)(c.Make(c.ctx, nodeID("c"), root("c"), ByUse, false))
	c.wantPins(t, nodeID("a"), nodeID("c"))
	c.asked = func() {
		c.asked = nil
		must(t)(c.Remove(c.ctx, nodeID("a")))
	}
	must(t)(c.Make(c.ctx, nodeID("d"), root("d"), ByUse, false))
	c.wantPins(t, nodeID("c"), nodeID("d"))

	failed := errors.New("the CRI does not answer")
	c.InUse = func(context.Context) (map[ID]bool, error) { return nil, failed }
	_, err := c.Make(c.ctx, nodeID("e"), root("e"), ByUse, false)
	wantFull(t, "without an answer", err)
	if !errors.Is(err, failed) {
		t.Errorf("the cause is not said: %v", err)
	}
	c.wantPins(t, nodeID("c"), nodeID("d"))
}

// TestCapHoldsAtOnce makes many pins at one time: there are never more than the cap allows.
func TestCapHoldsAtOnce(t *testing.T) {
	const most, makers = 5, 40
	e := newEnv(t, most)
	var wg sync.WaitGroup
	for i := range makers {
		wg.Go(func() {
			_, err := e.Make(e.ctx, nodeID(fmt.Sprint(i)), root("one"), ByUse, false)
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
			if _, err := c.Make(c.ctx, nodeID(fmt.Sprint(i)), root("one"), ByUse, false); err != nil {
				t.Error(err)
			}
			if n := len(c.List()); n > most {
				t.Errorf("%d pins", n)
			}
		})
	}
	wg.Wait()
	wantEqual(t, "pins", len(c.List()), most)
}

// TestExpireLooksAgain uses a pin after the pins have been listed, and before it is removed: it stays.
func TestExpireLooksAgain(t *testing.T) {
	for _, use := range []string{"touch", "make", "in use"} {
		t.Run(use, func(t *testing.T) {
			e := newEnv(t, 0)
			id := nodeID("a")
			must(t)(e.Make(e.ctx, id, root("a"), ByUse, false))
			e.age(t, id, 40*24*time.Hour)
			// The first question is asked while the list is gone through, the second under the pin's lock.
			asked := 0
			inUse := func(ID) bool {
				if asked++; asked > 1 {
					return use == "in use"
				}
				switch use {
				case "touch":
					if err := e.Touch(e.ctx, id); err != nil {
						t.Error(err)
					}
				case "make":
					must(t)(e.Make(e.ctx, id, root("a"), ByUse, false))
				}
				return false
			}
			if err := e.Expire(e.ctx, time.Now().Add(-30*24*time.Hour), inUse); err != nil {
				t.Fatal(err)
			}
			if _, ok := e.Get(id); !ok {
				t.Error("a pin that is used has expired")
			}
		})
	}
}
