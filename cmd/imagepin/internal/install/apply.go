//go:build unix

package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/version"
)

// Action is what [Apply] does.
type Action string

const (
	Install   Action = "install"
	Uninstall Action = "uninstall"
	// recovery only rolls back a change that was interrupted.
	recovery Action = "recover"
)

// Options are the options of [Apply].
type Options struct {
	Action Action
	// Mode is required for Install.
	Mode Mode
	// NoKubelet leaves kubelet as it is.
	NoKubelet bool
	// Wait limits how long each restarted service may take to become healthy.
	Wait time.Duration
}

// Errors of [Apply] and of [Request.Run].
var (
	// ErrRolledBack means that the node is as it was before the change.
	ErrRolledBack = errors.New("rolled back")
	// ErrRefused means that nothing was changed.
	ErrRefused = errors.New("nothing was changed")
)

// Apply makes a change on the node that it runs on, as root. It writes what it does to out.
//
// It fails with [ErrRefused] if the node does not have what a mode needs, and with [ErrRolledBack] if the CRI or kubelet did
// not come back, or if an earlier change was interrupted. It is the only process that changes the node: [Request.Run] runs
// it as a service.
func Apply(ctx context.Context, o Options, out io.Writer) error {
	s, err := openSystemd(ctx, systemdSocket)
	if err != nil {
		return err
	}
	defer s.Close()
	n := &node{Options: o, systemd: s, out: out}
	r, err := loadRecord(recordFile)
	var damaged *recordError
	if errors.As(err, &damaged) {
		n.log("%v: it is ignored", err)
	} else if err != nil {
		return err
	}
	if r == nil {
		if r, err = findInstalled(); err != nil {
			return err
		}
	}
	if r != nil && r.State == changing {
		n.log("an earlier change was interrupted")
		return n.rollBack(ctx, r, errors.New("an earlier change was interrupted"))
	}
	switch o.Action {
	case Uninstall:
		return n.uninstall(ctx, r)
	case recovery:
		return doNotRecover()
	}
	return n.install(ctx, r)
}

// node is the node that is changed.
type node struct {
	Options
	systemd *systemd
	out     io.Writer
}

func (n *node) log(format string, args ...any) {
	fmt.Fprintf(n.out, format+"\n", args...)
}

// refuse returns an ErrRefused.
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), ErrRefused)
}

// install installs imagepin, or another version of it.
func (n *node) install(ctx context.Context, before *record) error {
	p, err := n.plan(ctx, before)
	if err != nil {
		return refuse("%w", err)
	}
	to := record{Version: version.Version, Mode: n.Mode, Files: p.files(before == nil)}
	if before != nil {
		to.Kubelet = before.Kubelet
		to.Files = append(to.Files, slices.DeleteFunc(slices.Clone(before.Files), func(path string) bool { return slices.Contains(to.Files, path) })...)
	}
	c, err := n.begin(ctx, before, to)
	if err != nil {
		return err
	}
	changed := false
	for _, t := range p.targets {
		wrote, err := c.put(t)
		if err != nil {
			return n.rollBack(ctx, c.record, err)
		}
		if wrote {
			n.log("wrote %s", t.path)
		}
		changed = changed || wrote
	}
	if n.Mode == Serve {
		err = n.startServe(ctx, c, p, changed)
	} else {
		err = n.restartContainerd(ctx, c, p.socket, changed)
	}
	if err != nil {
		return n.rollBack(ctx, c.record, err)
	}
	if err := c.commit(); err != nil {
		return n.rollBack(ctx, c.record, err)
	}
	if err := finish(); err != nil {
		return err
	}
	n.log("imagepin %s is installed, mode %s", version.Version, n.Mode)
	return nil
}

// restartContainerd runs the containerd with imagepin.
func (n *node) restartContainerd(ctx context.Context, c *change, socket string, changed bool) error {
	if changed {
		if err := n.systemd.reload(ctx); err != nil {
			return err
		}
		u, err := n.systemd.unit(ctx, containerdUnit)
		if err != nil {
			return err
		}
		if want := filepath.Join(binDir, "containerd"); len(u.execStart) == 0 {
			return fmt.Errorf("%s has no ExecStart", containerdUnit)
		} else if u.execStart[0] != want {
			return fmt.Errorf("%s runs %s, not %s: a drop-in after %s sets ExecStart, see systemctl cat", containerdUnit, u.execStart[0], want, containerdDropIn)
		}
		if err := n.restartsContainerd(ctx, c); err != nil {
			return err
		}
		failpoint.Reach("install.reloaded")
	}
	return n.restartedIf(ctx, changed, containerdUnit, func(ctx context.Context) error {
		return errors.Join(healthyCRI(ctx, socket), healthyImagepin(ctx, socket, version.Version))
	})
}

// restartedIf restarts a service if it is to be, and waits until it is healthy.
func (n *node) restartedIf(ctx context.Context, restart bool, unit string, healthy func(context.Context) error) error {
	if restart {
		return n.restarted(ctx, unit, healthy)
	}
	ctx, cancel := context.WithTimeout(ctx, n.wait())
	defer cancel()
	return await(ctx, healthy)
}

// wait returns how long a service may take until it is healthy.
func (n *node) wait() time.Duration { return cmp.Or(n.Wait, defaultWait) }

const defaultWait = 2 * time.Minute

// restarted restarts a service, and waits until it is healthy. healthy may be nil.
func (n *node) restarted(ctx context.Context, unit string, healthy func(context.Context) error) (err error) {
	n.log("restart %s", unit)
	if unit == containerdUnit {
		defer func(ctx context.Context) { err = errors.Join(err, n.systemd.endKillStarting(ctx)) }(ctx)
		if err := n.systemd.killStarting(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, n.wait())
	defer cancel()
	if err := n.systemd.restart(ctx, unit); err != nil {
		return err
	}
	failpoint.Reach("install.restarted")
	if healthy == nil {
		return nil
	}
	if err := await(ctx, healthy); err != nil {
		return err
	}
	n.log("%s is healthy", unit)
	return nil
}
