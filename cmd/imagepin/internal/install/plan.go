//go:build unix

package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/defaults"
)

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
	if err := await(ctx, func(ctx context.Context) error { return p.kubelet.healthy(ctx, n.systemd) }); err != nil {
		return fmt.Errorf("%s is not healthy: %w", kubeletUnit, err)
	}
	return nil
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
