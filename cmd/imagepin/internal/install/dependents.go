//go:build unix

package install

import (
	"context"
	"fmt"
	"slices"
)

// dependents returns the units that run and require containerd. systemd stops them when it restarts containerd, and does not
// start them again if containerd does not start.
func (s *systemd) dependents(ctx context.Context) ([]string, error) {
	u, err := s.unit(ctx, containerdUnit)
	if err != nil {
		return nil, err
	}
	var running []string
	for _, name := range u.requiredBy {
		active, err := s.active(ctx, name)
		if err != nil {
			return nil, err
		}
		if active && !slices.Contains(running, name) {
			running = append(running, name)
		}
	}
	return running, nil
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

// startDependents starts the units that ran before a change and require containerd.
func (n *node) startDependents(ctx context.Context, units []string) error {
	ctx, cancel := context.WithTimeout(ctx, n.wait())
	defer cancel()
	for _, unit := range units {
		if err := n.systemd.start(ctx, unit); err != nil {
			return fmt.Errorf("%s ran before, and requires %s: %w", unit, containerdUnit, err)
		}
	}
	return nil
}
