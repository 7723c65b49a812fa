//go:build unix

package install

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/imagepin/imagepin/internal/failpoint"
)

// restartDropIn exists while a containerd that was not active is restarted. With it, systemd sends SIGKILL instead of SIGTERM: a
// containerd that gets SIGTERM while it loads its shims can end their containers, see loadShim in containerd's
// core/runtime/v2/shim_load.go. systemd ignores the first setting before 244, and the second before 246.
const (
	restartDropIn = "/run/systemd/system/containerd.service.d/60-imagepin-restart.conf"
	killOnRestart = "[Service]\nRestartKillSignal=SIGKILL\nTimeoutStartFailureMode=kill\n"
)

// restart starts or restarts a unit, and waits until it has started.
func (s *systemd) restart(ctx context.Context, unit string) error {
	begun := false
	return s.job(ctx, "restart", unit, func(c *dbus.Conn, ctx context.Context, unit, mode string, done chan<- string) (int, error) {
		if begun { // the connection was lost, and systemd has kept the job
			return c.StartUnitContext(ctx, unit, mode, done)
		}
		id, err := c.RestartUnitContext(ctx, unit, mode, done)
		begun = err == nil
		return id, err
	})
}

// killStarting creates [restartDropIn], unless containerd is active.
func (s *systemd) killStarting(ctx context.Context) error {
	u, err := s.unit(ctx, containerdUnit)
	if err != nil || u.state == "active" {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(restartDropIn), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(restartDropIn, []byte(killOnRestart), 0o644); err != nil {
		return err
	}
	failpoint.Reach("install.restarting")
	if err := s.reload(ctx); err != nil {
		return err
	}
	s.resetFailed(ctx, containerdUnit)
	return nil
}

// endKillStarting removes [restartDropIn], also that of a process that was killed.
func (s *systemd) endKillStarting(ctx context.Context) error {
	err := os.Remove(restartDropIn)
	_ = os.Remove(filepath.Dir(restartDropIn)) // fails unless it is empty
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.reload(ctx)
}
