package pull

import (
	"context"
	"errors"
	"testing"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// fakeGarbage records whether CollectAsync is called.
type fakeGarbage struct{ later bool }

func (*fakeGarbage) Collect(context.Context) error { return nil }

func (g *fakeGarbage) CollectAsync() { g.later = true }

// TestFailedPullCollectsGarbage checks that garbage is collected after a failed pull, and only then.
func TestFailedPullCollectsGarbage(t *testing.T) {
	for name, fails := range map[string]error{"success": nil, "failure": errors.New("no")} {
		t.Run(name, func(t *testing.T) {
			n := ctdtest.New(t)
			g := &fakeGarbage{}
			m := New(Config{Leases: n.Leases, Garbage: g})
			if err := m.withLease(n.Context(t), func(context.Context) error { return fails }); !errors.Is(err, fails) {
				t.Errorf("got %v, want %v", err, fails)
			}
			if g.later != (fails != nil) {
				t.Errorf("collected garbage: got %v, want %v", g.later, fails != nil)
			}
		})
	}
}
