package lookup

import (
	"context"
	"testing"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// run runs lookups in the background for a time.
func (e *env) run(t *testing.T, interval, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, d)
	defer cancel()
	e.Run(ctx, interval)
}

// TestRounds checks that pins in use and those of the lock are looked up once in each interval, and nothing else.
func TestRounds(t *testing.T) {
	e := newEnv(t)
	e.synctest(t, func(t *testing.T) {
		e.run(t, time.Hour, 10*time.Hour)
		wantEqual(t, "asked without a pin", e.took(), nil)
		if e.Round().IsZero() {
			t.Error("no round has ended")
		}
		e.pin(t, app, "one")
		e.unused[e.pin(t, other, "one").ID] = true
		e.pins.SetLock([]pin.Pin{{ID: pin.ID{Scope: "lock", Ref: far}, Root: root("one"), By: pin.ByLock}}, nil)
		e.unused[pin.ID{Scope: "lock", Ref: far}] = true
		e.tags[app], e.tags[other], e.tags[far] = "one", "one", "one"
		e.run(t, 0, 10*time.Hour)
		wantEqual(t, "asked without an interval", e.took(), nil)
		e.run(t, 2*time.Hour, 2*time.Hour) // the first round is in the first interval, and a second one if that was within 12 minutes
		asked := e.took()
		if len(asked) == 4 {
			wantEqual(t, "asked again in the first interval", asked[2:], []string{far, app})
			asked = asked[:2]
		}
		wantEqual(t, "asked in the first interval", asked, []string{far, app})
		e.run(t, 2*time.Hour, 22*time.Hour)
		times := e.times
		if n := len(times); n < 2*9 || n > 2*13 {
			t.Errorf("%d requests in 22h for 2 pins with an interval of 2h", n)
		}
		for i := 2; i < len(times); i += 2 {
			if between := times[i].Sub(times[i-2]); between < 108*time.Minute-time.Second || between > 132*time.Minute+time.Second {
				t.Errorf("%s between two rounds, want 2h with 10%% more or less", between)
			}
		}
	})
}

// TestPace checks that there are at most 4 lookups a second.
func TestPace(t *testing.T) {
	e := newEnv(t)
	e.synctest(t, func(t *testing.T) {
		for _, ref := range []string{app, other, far} {
			e.pin(t, ref, "one")
			e.tags[ref] = "two"
		}
		e.check(t)
		if len(e.times) != 6 {
			t.Fatalf("asked %v", e.asked)
		}
		for i, at := range e.times[1:] {
			if between := at.Sub(e.times[i]); between < gap {
				t.Errorf("%s between two lookups", between)
			}
		}
	})
}

// TestBackOff checks the pauses of a registry that is not available: the others are looked up, and a check of an operator asks it once,
// unless it has asked for a pause.
func TestBackOff(t *testing.T) {
	for name, x := range map[string]struct {
		err     error
		pauses  []time.Duration
		checked []string // by a check during a pause
	}{
		"away":              {away, []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute}, []string{far, app}},
		"429":               {busy(0), []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute}, []string{far}},
		"429 for some time": {busy(5 * time.Minute), []time.Duration{5 * time.Minute, 5 * time.Minute, 5 * time.Minute, 8 * time.Minute}, []string{far}},
		"429 for years":     {busy(1e6 * time.Hour), []time.Duration{24 * time.Hour}, []string{far}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.synctest(t, func(t *testing.T) {
				first := e.pin(t, app, "one")
				e.pin(t, other, "one")
				e.pin(t, far, "one")
				e.tags[far] = "one"
				e.fails["registry.example"] = x.err
				const interval = 100 * time.Hour
				e.run(t, interval, interval) // the first round, and its pauses
				asked, times := e.asked, e.times
				if len(asked) < 2 || asked[0] != far || asked[1] != app {
					t.Fatalf("asked %v", asked)
				}
				for i, ref := range asked[1:min(len(asked), 2+len(x.pauses))] {
					if ref != app { // never the second reference before the first has an answer
						t.Errorf("asked %v", asked)
					}
					if i == 0 {
						continue
					}
					if between, want := times[i+1].Sub(times[i]), x.pauses[i-1]; between < want || between > want+time.Second {
						t.Errorf("pause %d is %s, want %s", i, between, want)
					}
				}
				if got := e.outcome(t, first); got != "no_answer" {
					t.Errorf("got %s", got)
				}
				e.took()
				e.Looker.hosts.note("registry.example", x.err)
				time.Sleep(time.Second)
				e.check(t)
				wantEqual(t, "asked by a check", e.took(), x.checked)
				if r, _ := e.Looker.Of(first); r.Outcome != NoAnswer || r.Why == "" {
					t.Errorf("got %+v", r)
				}
			})
		})
	}
}
