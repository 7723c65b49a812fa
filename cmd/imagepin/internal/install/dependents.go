//go:build unix

package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// dependents returns the active units that require containerd, or a unit that requires it. systemd stops them when it restarts
// containerd, and does not start them again if containerd does not start.
func (s *systemd) dependents(ctx context.Context) (active []string, _ error) {
	all := []string{containerdUnit}
	for i := 0; i < len(all); i++ {
		u, err := s.unit(ctx, all[i])
		if err != nil {
			return nil, err
		}
		if i > 0 && u.state == "active" {
			active = append(active, all[i])
		}
		for _, name := range u.requiredBy {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return active, nil
}

// restartsContainerd notes that containerd is about to be restarted, and which units must run after a rollback.
func (n *node) restartsContainerd(ctx context.Context, c *change) error {
	units, err := n.systemd.dependents(ctx)
	if err != nil {
		return err
	}
	c.record.Dependents = units
	return c.restarts(containerdUnit)
}

// startDependents starts the units that were active before a change and require containerd. The error has those that do not start.
func (n *node) startDependents(ctx context.Context, units []string) (failed error) {
	for _, unit := range units {
		n.systemd.resetFailed(ctx, unit)
		limited, cancel := context.WithTimeout(ctx, n.wait())
		if err := n.systemd.start(limited, unit); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s ran before: %w", unit, err))
		}
		cancel()
	}
	return failed
}
