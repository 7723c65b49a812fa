//go:build unix

package install

import (
	"context"
	"errors"
	"os"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/version"
)

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
