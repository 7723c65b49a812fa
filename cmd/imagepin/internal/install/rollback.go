//go:build unix

package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/defaults"

	"github.com/imagepin/imagepin/internal/failpoint"
)

// rollBack restores the node as it was before a change, and waits until it is healthy. It returns why with ErrRolledBack, or
// the error because of which it could not.
func (n *node) rollBack(ctx context.Context, r *record, why error) error {
	n.log("rolling back: %v", why)
	if err := n.undo(ctx, r); err != nil {
		n.log("cannot roll back: %v", err)
		return fmt.Errorf("%w; and cannot roll back: %w", why, err)
	}
	n.log("rolled back")
	return fmt.Errorf("%w: %w", why, ErrRolledBack)
}

func (n *node) undo(ctx context.Context, r *record) error {
	n.Wait = max(n.Wait, defaultWait) // a wait that is too short for the change must not end its rollback
	first := r.Before == nil
	if first && r.Mode == Serve {
		if err := n.disable(ctx); err != nil {
			return err
		}
	}
	if err := r.restore(); err != nil {
		return err
	}
	if err := n.systemd.reload(ctx); err != nil {
		return err
	}
	failpoint.Reach("install.undone")
	// kubelet comes before the service that it does not use any more.
	for _, unit := range slices.Backward(r.Restarted) {
		if err := n.restartOld(ctx, unit, first); err != nil {
			return err
		}
	}
	// A unit that does not start is an error, and does not keep the node in the change.
	failed := n.startDependents(ctx, r.Dependents)
	return errors.Join(n.endUndo(r, first), failed)
}

// endUndo removes what only the change needs.
func (n *node) endUndo(r *record, first bool) error {
	if !first {
		if err := r.Before.save(); err != nil {
			return err
		}
		return finish()
	}
	for _, path := range r.Absent {
		if _, err := removeState(path); err != nil {
			return err
		}
	}
	if err := os.Remove(recordFile); err != nil {
		return err
	}
	if err := doNotRecover(); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// begin is [begin], and rolls back if it fails.
func (n *node) begin(ctx context.Context, before *record, to record) (*change, error) {
	c, err := begin(before, to)
	if err != nil && c != nil {
		return nil, n.rollBack(ctx, c.record, err)
	}
	return c, err
}

// disable disables the units of imagepin serve, if they exist. Their files are removed after that.
func (n *node) disable(ctx context.Context) error {
	for _, unit := range []string{socketUnit, serviceUnit} {
		if _, err := os.Stat(filepath.Join(unitDir, unit)); err != nil {
			continue
		}
		err := n.systemd.call(ctx, "disable "+unit, func() error {
			_, err := n.systemd.DisableUnitFilesContext(ctx, []string{unit}, false)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// stopServe stops the units of imagepin serve, if they run. The socket would start the service again.
func (n *node) stopServe(ctx context.Context) error {
	for _, unit := range []string{socketUnit, serviceUnit} {
		running, err := n.systemd.active(ctx, unit)
		if err != nil {
			return err
		}
		if running {
			if err := n.systemd.stop(ctx, unit); err != nil {
				return err
			}
		}
	}
	return nil
}

// restartOld restarts a service after its files were restored. After a first installation, imagepin's own are stopped.
func (n *node) restartOld(ctx context.Context, unit string, first bool) error {
	switch unit {
	case serviceUnit:
		if !first {
			return n.restarted(ctx, unit, nil)
		}
		return n.stopServe(ctx)
	case kubeletUnit:
		k, err := findKubelet(ctx, n.systemd)
		if k == nil || err != nil { // it does not run, so that its health cannot be read
			return n.restarted(ctx, unit, nil)
		}
		return n.restarted(ctx, unit, func(ctx context.Context) error { return k.healthy(ctx, n.systemd) })
	}
	return n.restarted(ctx, unit, func(ctx context.Context) error { return healthyCRI(ctx, defaults.DefaultAddress) })
}
