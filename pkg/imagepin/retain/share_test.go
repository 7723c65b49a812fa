package retain_test

import (
	"math"
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// pinFor retains an image for a workload of a namespace.
func (e *env) pinFor(namespace, name string, entry imagepin.Entry) {
	e.t.Helper()
	id := pin.ID{Scope: policy.WorkloadScope(namespace, "hash", name), Ref: repo + ":" + name}
	if _, err := e.pins.MakeForNamespace(e.ctx, namespace, id, entry.Root, pin.ByUse, true); err != nil {
		e.t.Fatal(err)
	}
}

// reserve reserves room, which the test releases at its end.
func (e *env) reserve(namespace string, arrived func() int64, entries ...imagepin.Entry) error {
	release, err := e.Reserve(namespace, arrived, nil, entries...)
	if err == nil {
		e.t.Cleanup(release)
	}
	return err
}

// TestSlowReservation reserves room for images that arrive slowly. For other namespaces, they count with what has arrived, and all of
// a namespace together with one sixteenth of the limit. In their own namespace they count as declared.
func TestSlowReservation(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 1600
	var arrived int64
	drips := func() int64 { return arrived }
	if err := e.reserve("evil", drips, e.image("drips", first)); err != nil {
		t.Fatal(err)
	}
	wantFull(t, "another one of the namespace", e.reserve("evil", drips, e.image("drips too", first)))
	other := e.image("other", first)
	if err := e.reserve("shop", nil, other); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	full := e.image("full", first)
	wantFull(t, "besides an image that has arrived", e.reserve("team", drips, full))
	huge := full
	huge.Size = math.MaxInt64
	wantFull(t, "an image that is larger than the limit", e.reserve("team", drips, huge))

	e = newEnv(t)
	e.maxBytes = 3000
	arrived = 0
	a, b, c, d := e.image("a", first), e.image("b", first), e.image("c", first), e.image("d", first)
	for _, entry := range []imagepin.Entry{a, b} {
		if err := e.reserve("evil", drips, entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.reserve("shop", drips, c); err != nil {
		t.Errorf("before anything has arrived: %v", err)
	}
	arrived = 900
	wantFull(t, "after 2700 bytes have arrived", e.reserve("team", nil, d))
	arrived = -1 // a meter that has not begun
	if err := e.reserve("team", nil, d); err != nil {
		t.Errorf("nothing has arrived: %v", err)
	}
}

// TestSameImageArrives reserves room for one image twice, as two targets of it do. It counts once.
func TestSameImageArrives(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 1000
	a := e.image("a", first)
	for range 2 {
		if err := e.reserve("", func() int64 { return 10 }, a); err != nil {
			t.Error(err)
		}
	}
}

// TestNamespaceShare checks that one namespace retains at most three quarters of the limit, and that the node's own pins are not
// limited further.
func TestNamespaceShare(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 4000
	entries := make([]imagepin.Entry, 5)
	for n := range entries {
		entries[n] = e.image(string(rune('a'+n)), first)
	}
	for _, n := range []int{0, 1} {
		e.pinFor("evil", entries[n].Ref[len(entries[n].Ref)-8:], entries[n])
		e.wantHeld("an image of the namespace", entries[n], true)
	}
	if err := e.reserve("evil", nil, entries[2]); err != nil {
		t.Errorf("three of four: %v", err)
	}
	wantFull(t, "four of four", e.reserve("evil", nil, entries[3]))
	if err := e.reserve("shop", nil, entries[3]); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	e = newEnv(t)
	e.maxBytes = 1000
	if err := e.reserve("", nil, e.image("a", first)); err != nil {
		t.Errorf("the node: %v", err)
	}
	e.maxBytes = 0
	if err := e.reserve("shop", nil, e.image("b", first)); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// TestOverShare checks which namespaces give way to another one.
func TestOverShare(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 4000
	for n, namespace := range []string{"evil", "evil", "evil", "shop"} {
		name := string(rune('a' + n))
		e.pinFor(namespace, name, e.image(name, first))
	}
	for name, c := range map[string]struct {
		namespace string
		more      int64
		want      bool // that pins of evil give way; those of shop never do
	}{
		"a third namespace within its share": {"team", 1000, true},
		"a third namespace above its share":  {"team", 1500, false},
		"a namespace within its share":       {"shop", 1000, true},
		"a namespace above its share":        {"shop", 1001, false},
		"the largest one":                    {"evil", 1, false},
		"the node":                           {"", 1000, true},
	} {
		over := e.OverShare(c.namespace, c.more)
		if got := over("evil"); got != c.want || over("shop") || over(c.namespace) {
			t.Errorf("%s: evil gives way %v, want %v; shop %v, itself %v", name, got, c.want, over("shop"), over(c.namespace))
		}
	}
}
