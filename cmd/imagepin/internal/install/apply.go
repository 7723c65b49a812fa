//go:build unix

package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/defaults"

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

// plan is what an installation needs to know before it changes anything.
type plan struct {
	targets []target
	// socket is that of containerd, and serve that of imagepin serve.
	socket, serve string
	kubelet       *kubelet
}

// files returns the files that are removed with imagepin. A configuration that the node has before stays.
func (p *plan) files(first bool) (paths []string) {
	for _, t := range p.targets {
		if t.path == configFile {
			if _, err := os.Stat(configFile); err == nil || !first {
				continue
			}
		}
		paths = append(paths, t.path)
	}
	return paths
}

// plan checks what is on the node.
func (n *node) plan(ctx context.Context, before *record) (*plan, error) {
	for _, path := range packagedFiles {
		if _, err := os.Stat(path); err == nil {
			return nil, fmt.Errorf("%s exists: imagepin is installed from a package. Upgrade the package, or remove it", path)
		}
	}
	if before != nil && before.State == removing {
		return nil, errors.New("a removal of imagepin was interrupted: run imagepin uninstall --root again")
	}
	if before != nil && before.Mode != n.Mode {
		return nil, fmt.Errorf("imagepin is installed with mode %s: uninstall it before you install it with mode %s", before.Mode, n.Mode)
	}
	u, err := n.systemd.unit(ctx, containerdUnit)
	if err != nil {
		return nil, err
	}
	if !u.loaded || u.pid == 0 {
		return nil, fmt.Errorf("%s does not run", containerdUnit)
	}
	p := &plan{socket: defaults.DefaultAddress}
	path, err := searchPath(u.pid)
	if err != nil {
		return nil, fmt.Errorf("environment of containerd: %w", err)
	}
	if p.targets, err = targets(n.Mode, u.execStart, path); err != nil {
		return nil, err
	}
	if n.Mode == Serve {
		i := slices.IndexFunc(p.targets, func(t target) bool { return t.path == configFile })
		c, err := serveConfig(ctx, &p.targets[i], u.pid)
		if err != nil {
			return nil, err
		}
		p.socket, p.serve = c.ContainerdAddress, c.Address
	}
	if n.Mode == Serve {
		if err := n.planKubelet(ctx, p, before == nil); err != nil {
			return nil, err
		}
	}
	v, err := containerdVersion(ctx, p.socket)
	if err != nil {
		return nil, err
	}
	switch err := healthyCRI(ctx, p.socket); {
	case err == nil:
		n.log("containerd %s on %s is healthy", v, p.socket)
	case before == nil:
		return nil, err
	default: // another version of imagepin may repair it
		n.log("containerd %s on %s is not healthy: %v", v, p.socket, err)
	}
	if n.Mode == Plugin {
		err = checkConfig(ctx, u.pid)
	}
	return p, err
}

// planKubelet checks that kubelet works and can use the socket of imagepin serve.
func (n *node) planKubelet(ctx context.Context, p *plan, first bool) error {
	if !n.NoKubelet {
		k, err := findKubelet(ctx, n.systemd)
		if err != nil {
			return err
		}
		p.kubelet = k
	}
	if p.kubelet == nil {
		n.log("kubelet is not changed")
		return nil
	}
	p.targets = append(p.targets, target{path: kubeletDropIn, content: []byte(orderOfKubelet), mode: 0o644})
	if !p.kubelet.uses(p.serve) {
		if _, _, err := p.kubelet.with("unix://" + p.serve); err != nil {
			return err
		}
	}
	if !first || p.kubelet.healthz == "" {
		return nil
	}
	// Otherwise its health says nothing after the change, and a rollback fails.
	ctx, cancel := context.WithTimeout(ctx, min(n.wait(), stable))
	defer cancel()
	return await(ctx, func(ctx context.Context) error { return p.kubelet.healthy(ctx, n.systemd) })
}

// checkConfig lets the new containerd read the configuration of the running one, before that is replaced.
func checkConfig(ctx context.Context, pid int) error {
	args, err := commandLine(pid)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(stagedDir, "bin", "containerd"), append(args[1:], "config", "dump")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, lastLine(out))
	}
	return nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// startServe starts imagepin serve, and lets kubelet use it.
func (n *node) startServe(ctx context.Context, c *change, p *plan, changed bool) error {
	if changed {
		if err := c.restarts(serviceUnit); err != nil {
			return err
		}
		if err := n.systemd.reload(ctx); err != nil {
			return err
		}
		failpoint.Reach("install.reloaded")
		err := n.systemd.call(ctx, "enable "+serviceUnit, func() error {
			_, _, err := n.systemd.EnableUnitFilesContext(ctx, []string{socketUnit, serviceUnit}, false, true)
			return err
		})
		if err != nil {
			return err
		}
		failpoint.Reach("install.enabled")
		// A service that runs already has the socket.
		if running, err := n.systemd.active(ctx, serviceUnit); err != nil {
			return err
		} else if !running {
			if err := n.restarted(ctx, socketUnit, nil); err != nil {
				return err
			}
		}
	}
	healthy := func(ctx context.Context) error {
		return errors.Join(healthyCRI(ctx, p.serve), healthyImagepin(ctx, p.serve, version.Version))
	}
	if err := n.restartedIf(ctx, changed, serviceUnit, healthy); err != nil {
		return err
	}
	failpoint.Reach("install.serving")
	return n.switchKubelet(ctx, c, p)
}

// switchKubelet lets kubelet use the socket of imagepin serve.
func (n *node) switchKubelet(ctx context.Context, c *change, p *plan) error {
	k, endpoint := p.kubelet, "unix://"+p.serve
	if k == nil {
		return nil
	}
	healthy := func(ctx context.Context) error { return k.healthy(ctx, n.systemd) }
	if k.uses(p.serve) {
		return n.restartedIf(ctx, false, kubeletUnit, healthy)
	}
	before, after, err := k.with(endpoint)
	if err != nil {
		return err
	}
	c.record.Kubelet = &kubeletFile{Path: k.file, Flag: k.flag, Before: before, After: after, Endpoint: k.endpoint}
	return n.writeKubelet(ctx, c, target{path: k.file, content: after}, endpoint, healthy)
}

// writeKubelet writes a file of kubelet, and restarts kubelet.
func (n *node) writeKubelet(ctx context.Context, c *change, t target, endpoint string, healthy func(context.Context) error) error {
	info, err := os.Stat(t.path)
	if err != nil {
		return err
	}
	t.mode = info.Mode().Perm()
	if err := c.restarts(kubeletUnit); err != nil {
		return err
	}
	if _, err := c.put(t); err != nil {
		return err
	}
	n.log("set kubelet's endpoint to %s in %s", endpoint, t.path)
	// The file can be one of kubelet's unit.
	if err := n.systemd.reload(ctx); err != nil {
		return err
	}
	return n.restarted(ctx, kubeletUnit, healthy)
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
		if err := c.restarts(containerdUnit); err != nil {
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
func (n *node) restarted(ctx context.Context, unit string, healthy func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, n.wait())
	defer cancel()
	n.log("restart %s", unit)
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
