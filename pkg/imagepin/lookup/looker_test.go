package lookup

import (
	"testing"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// TestOutcomes looks up a pin to "one" in each state of its registry.
func TestOutcomes(t *testing.T) {
	for name, x := range map[string]struct {
		tag     string // text of the tag's digest; empty means there is no tag
		present bool   // the registry has "one"
		proved  string // text of a digest of the repository of which the node has a proof
		fails   map[string]error
		asked   []string
		want    string
		events  []string
	}{
		"the same":                          {tag: "one", asked: []string{app}, want: "present"},
		"moved":                             {tag: "two", present: true, asked: []string{app, at(app, "one")}, want: "present, moved", events: []string{"drifted " + app}},
		"moved, the digest is gone":         {tag: "two", asked: []string{app, at(app, "one")}, want: "gone, moved", events: []string{"drifted " + app, "gone " + app}},
		"the tag is gone":                   {present: true, asked: []string{app, at(app, "one")}, want: "present"},
		"both are gone":                     {proved: "one", asked: []string{app, at(app, "one")}, want: "gone", events: []string{"gone " + app}},
		"both are gone, no proof":           {asked: []string{app, at(app, "one")}, want: "no_access"},
		"both are gone, proof of another":   {proved: "three", asked: []string{app, at(app, "one")}, want: "no_access"},
		"no access":                         {fails: map[string]error{"registry.example": denied}, proved: "one", asked: []string{app}, want: "no_access"},
		"moved, no access to the digest":    {tag: "two", fails: map[string]error{at(app, "one"): denied}, asked: []string{app, at(app, "one")}, want: "no_access, moved", events: []string{"drifted " + app}},
		"no answer":                         {fails: map[string]error{"registry.example": away}, proved: "one", asked: []string{app}, want: "no_answer"},
		"moved, no answer about the digest": {tag: "two", fails: map[string]error{at(app, "one"): away}, asked: []string{app, at(app, "one")}, want: "no_answer, moved", events: []string{"drifted " + app}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			p := e.pin(t, app, "one")
			e.takeEvents()
			if x.tag != "" {
				e.tags[app] = x.tag
			}
			if x.present {
				e.tags[at(app, "one")] = "one"
			}
			if x.proved != "" {
				e.proofs[at(app, x.proved)] = true
			}
			for of, err := range x.fails {
				e.fails[of] = err
			}
			e.check(t)
			wantEqual(t, "asked", e.took(), x.asked)
			wantEqual(t, "events", e.takeEvents(), x.events)
			if got := e.outcome(t, p); got != x.want {
				t.Errorf("got %s, want %s", got, x.want)
			}
			if now, _ := e.pins.Get(p.ID); now.Root.Digest != p.Root.Digest || !now.UsedAt.Equal(p.UsedAt) || !now.MadeAt.Equal(p.MadeAt) {
				t.Errorf("the pin has changed: %+v, was %+v", now, p)
			}
		})
	}
}

// TestGoneAgain checks that a digest that is gone is reported once, stays gone without an answer, is counted, and can come back.
func TestGoneAgain(t *testing.T) {
	e := newEnv(t)
	e.synctest(t, func(t *testing.T) {
		p := e.pin(t, app, "one")
		e.takeEvents()
		e.tags[app] = "one"
		e.check(t) // the proof that a later 404 needs
		delete(e.tags, app)
		e.check(t)
		e.check(t)
		wantEqual(t, "events", e.takeEvents(), []string{"gone " + app})
		first, _ := e.Looker.Of(p)
		e.fails["registry.example"] = away
		e.check(t)
		if now, _ := e.Looker.Of(p); now != first || e.Looker.Gone() != 1 || first.Since.IsZero() {
			t.Errorf("got %+v, want %+v, and 1 gone", now, first)
		}
		clear(e.fails)
		time.Sleep(time.Second)
		e.tags[app] = "one"
		e.check(t)
		if got := e.outcome(t, p); got != "present" || e.Looker.Gone() != 0 {
			t.Errorf("got %s and %d gone, want present and none", got, e.Looker.Gone())
		}
		if got, want := counts(e.looked), "map[gone:2 no_answer:1 present:2]"; got != want {
			t.Errorf("counted %s, want %s", got, want)
		}
		delete(e.tags, app)
		e.nodeKey = "rotated" // another credential: what the registry accepted before is no proof
		e.check(t)
		if got := e.outcome(t, p); got != "no_access" {
			t.Errorf("got %s with another credential, want no_access", got)
		}
	})
}

// TestScopes checks that the pins of a reference share the lookup of its tag, and those with one digest that of the digest.
func TestScopes(t *testing.T) {
	e := newEnv(t)
	a, b := e.pin(t, app, "one", "workload/shop/hash=a"), e.pin(t, app, "one", "workload/shop/hash=b")
	c, d := e.pin(t, app, "two", "workload/shop/hash=c"), e.pin(t, app, "three", "workload/shop/hash=d")
	e.tags[app], e.tags[at(app, "three")] = "two", "three"
	e.check(t)
	wantEqual(t, "asked", e.took(), []string{app, at(app, "one"), at(app, "three")})
	for p, want := range map[*pin.Pin]string{&a: "gone, moved", &b: "gone, moved", &c: "present", &d: "present, moved"} {
		if got := e.outcome(t, *p); got != want {
			t.Errorf("%s: got %s, want %s", p.Scope, got, want)
		}
	}
}

// TestMovedMeanwhile checks that the answer about a pin that is moved or removed during a lookup is dropped.
func TestMovedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *env, pin.Pin){
		"moved":   func(t *testing.T, e *env, _ pin.Pin) { e.pin(t, app, "two") },
		"removed": func(t *testing.T, e *env, p pin.Pin) { _, err := e.pins.Remove(e.ctx, p.ID); must(t, err) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			p := e.pin(t, app, "one")
			e.tags[app] = "three"
			e.during = func() { change(t, e, p) }
			e.check(t)
			if r, ok := e.Looker.Of(p); ok || e.Looker.Gone() != 0 {
				t.Errorf("got %+v", r)
			}
			if now, ok := e.pins.Get(p.ID); ok && (now.Drift != nil || now.Root.Digest != root("two").Digest) {
				t.Errorf("got %+v", now)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPulled checks what a pull that has resolved a tag says about its pins.
func TestPulled(t *testing.T) {
	e := newEnv(t)
	same, moved := e.pin(t, app, "one"), e.pin(t, app, "two", "workload/shop/hash=a")
	gone := e.pin(t, app, "three", "workload/shop/hash=b")
	e.tags[app], e.tags[at(app, "two")] = "one", "two"
	e.check(t)
	e.restart()
	e.note("")
	if _, ok := e.Looker.Of(same); ok {
		t.Error("a result survives a restart")
	}
	if err := e.Check(e.ctx, []pin.Pin{gone}); err != nil {
		t.Fatal(err)
	}
	e.Pulled(app, root("one").Digest)
	for p, want := range map[*pin.Pin]string{&same: "present", &moved: ", moved", &gone: "gone, moved"} {
		if got := e.outcome(t, *p); got != want {
			t.Errorf("%s: got %q, want %q", p.Scope, got, want)
		}
	}
}
