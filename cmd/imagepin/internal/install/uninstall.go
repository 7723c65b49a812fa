//go:build unix

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/defaults"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
)

// uninstall removes imagepin from the node.
func (n *node) uninstall(ctx context.Context, r *record) error {
	if r == nil {
		n.log("imagepin is not installed by imagepin install on this node")
		return os.RemoveAll(dir)
	}
	if r.State != removing {
		var err error
		if r.Mode == Serve {
			err = n.leaveServe(ctx, r)
		} else {
			err = n.leavePlugin(ctx, r)
		}
		if err != nil {
			return err
		}
	}
	return n.removeFiles(ctx, r)
}

// leaveServe lets kubelet use containerd's socket again, and removes what imagepin has written.
func (n *node) leaveServe(ctx context.Context, r *record) error {
	socket := config.DefaultServeAddress
	if b, err := os.ReadFile(configFile); err == nil {
		if c, err := config.ParseFile(b); err == nil {
			socket = c.Address
		}
	}
	k, err := findKubelet(ctx, n.systemd)
	if err != nil {
		n.log("kubelet: %v", err) // it may not run because of imagepin
		k = nil
	}
	if r.Kubelet == nil && k != nil && k.uses(socket) {
		return refuse("kubelet uses %s, and its endpoint before is not known: set it in %s to containerd's, %s, and restart kubelet", socket, k.file, defaultEndpoint)
	}
	c, err := n.begin(ctx, r, *r)
	if err != nil {
		return err
	}
	if r.Kubelet != nil {
		if err := n.restoreKubelet(ctx, c, r.Kubelet, k, socket); err != nil {
			return n.rollBack(ctx, c.record, err)
		}
	}
	return n.leave(ctx, c, socket)
}

// restoreKubelet sets kubelet's endpoint as it was. k is nil if kubelet does not run.
func (n *node) restoreKubelet(ctx context.Context, c *change, f *kubeletFile, k *kubelet, socket string) error {
	if k == nil {
		k = &kubelet{file: f.Path, flag: f.Flag, endpoint: "unix://" + socket}
	}
	endpoint := f.Endpoint
	if !k.uses(socket) { // another tool has set it, and the process may not know yet
		endpoint = k.endpoint
	}
	now, err := os.ReadFile(k.file)
	if errors.Is(err, fs.ErrNotExist) {
		n.log("%s is gone: kubelet's endpoint is not changed", k.file)
		return nil
	}
	if err != nil {
		return err
	}
	before := now
	switch {
	case k.file == f.Path && bytes.Equal(now, f.After):
		before = f.Before
	case k.uses(socket):
		if before, err = setEndpoint(now, endpoint, k.flag); err != nil {
			return fmt.Errorf("%s: %w", k.file, err)
		}
	}
	if err := c.remove(kubeletDropIn); err != nil {
		return err
	}
	healthy := func(ctx context.Context) error {
		k, err := findKubelet(ctx, n.systemd)
		if k == nil || err != nil {
			return err
		}
		return k.healthy(ctx, n.systemd)
	}
	return n.writeKubelet(ctx, c, target{path: k.file, content: before}, endpoint, healthy)
}

// leave removes what imagepin has written to containerd's metadata, and notes that its files can be removed.
func (n *node) leave(ctx context.Context, c *change, socket string) error {
	n.removeLabels(ctx, socket)
	failpoint.Reach("install.left")
	if c.record.Mode == Plugin {
		if err := n.leaveContainerd(ctx, c); err != nil {
			return n.rollBack(ctx, c.record, err)
		}
	}
	r := *c.record
	r.State = removing
	if err := r.save(); err != nil {
		return n.rollBack(ctx, c.record, err)
	}
	return doNotRecover()
}

// removeLabels removes what imagepin has written to containerd's metadata. An imagepin that does not work is removed too: then
// the labels stay, which containerd ignores.
func (n *node) removeLabels(ctx context.Context, socket string) {
	ctx, cancel := context.WithTimeout(ctx, n.wait())
	defer cancel()
	removed, err := removeLabels(ctx, socket)
	if err != nil {
		n.log("labels, pins and leases stay in containerd's metadata: %v", err)
		return
	}
	n.log("removed %d labels, %d pins and %d leases", removed.GetLabels(), removed.GetPins(), removed.GetLeases())
}

// leavePlugin lets containerd.service run the node's own containerd again.
func (n *node) leavePlugin(ctx context.Context, r *record) error {
	c, err := n.begin(ctx, r, *r)
	if err != nil {
		return err
	}
	return n.leave(ctx, c, defaults.DefaultAddress)
}

func (n *node) leaveContainerd(ctx context.Context, c *change) error {
	if err := n.restartsContainerd(ctx, c); err != nil {
		return err
	}
	if err := c.remove(containerdDropIn); err != nil {
		return err
	}
	if err := n.systemd.reload(ctx); err != nil {
		return err
	}
	return n.restarted(ctx, containerdUnit, func(ctx context.Context) error { return healthyCRI(ctx, defaults.DefaultAddress) })
}

// removeState removes a directory, except for the operator's bundles in it. It returns the path that is kept, or "".
func removeState(path string) (kept string, _ error) {
	files, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, f := range files {
		at := filepath.Join(path, f.Name())
		if f.Name() != bundlesDir {
			if err := os.RemoveAll(at); err != nil {
				return "", err
			}
		} else if os.Remove(at) != nil { // it is not empty
			kept = at
		}
	}
	if kept != "" {
		return kept, nil
	}
	return "", os.Remove(path)
}

// removeFiles removes the files of imagepin. Nothing uses them any more. It can be repeated.
func (n *node) removeFiles(ctx context.Context, r *record) error {
	if r.Mode == Serve {
		if err := errors.Join(n.disable(ctx), n.stopServe(ctx)); err != nil {
			return err
		}
	}
	for _, path := range r.Files {
		failpoint.Reach("install.remove")
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		_ = os.Remove(filepath.Dir(path)) // fails unless it is empty
	}
	if r.Mode == Serve {
		for _, path := range stateDirs {
			failpoint.Reach("install.remove")
			kept, err := removeState(path)
			if err != nil {
				return err
			}
			if kept != "" {
				n.log("%s is kept: it has files that imagepin has not written", kept)
			}
		}
	}
	if err := n.systemd.reload(ctx); err != nil {
		return err
	}
	n.log("imagepin is removed")
	return os.RemoveAll(dir)
}
