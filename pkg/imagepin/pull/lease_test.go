package pull

import (
	"context"
	"errors"
	"testing"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// TestGarbageOfAFailedPull has what a pull left collected where it fails, and only there.
func TestGarbageOfAFailedPull(t *testing.T) {
	for name, fails := range map[string]error{"success": nil, "failure": errors.New("no")} {
		t.Run(name, func(t *testing.T) {
			n := ctdtest.New(t)
			collected := false
			p := &Puller{Config: Config{Leases: n.Leases, Garbage: func() { collected = true }}}
			if err := p.withLease(n.Context(t), func(context.Context) error { return fails }); !errors.Is(err, fails) {
				t.Errorf("got %v", err)
			}
			if collected != (fails != nil) {
				t.Errorf("garbage is collected: %v", collected)
			}
		})
	}
}
