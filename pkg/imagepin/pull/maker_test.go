package pull

import (
	"context"
	"errors"
	"testing"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// laterGarbage is not collected.
type laterGarbage struct{ later bool }

func (*laterGarbage) Collect(context.Context) error { return nil }

func (g *laterGarbage) CollectLater() { g.later = true }

// TestGarbageOfAFailedPull has what a pull left collected where it fails, and only there.
func TestGarbageOfAFailedPull(t *testing.T) {
	for name, fails := range map[string]error{"success": nil, "failure": errors.New("no")} {
		t.Run(name, func(t *testing.T) {
			n := ctdtest.New(t)
			g := &laterGarbage{}
			m := New(Config{Leases: n.Leases, Garbage: g})
			if err := m.withLease(n.Context(t), func(context.Context) error { return fails }); !errors.Is(err, fails) {
				t.Errorf("got %v", err)
			}
			if g.later != (fails != nil) {
				t.Errorf("garbage is collected: %v", g.later)
			}
		})
	}
}
