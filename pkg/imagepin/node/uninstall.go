package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// uninstall removes all of imagepin's records from containerd's metadata. With dry it only counts them. stopWriters
// stops everything that writes, so that nothing is written again.
func (n *Node) uninstall(ctx context.Context, dry bool, stopWriters func(context.Context) error) (*api.UninstallResponse, error) {
	if !dry {
		if err := stopWriters(ctx); err != nil {
			return nil, err
		}
		log.G(ctx).Warn("uninstalling imagepin: all calls are forwarded to containerd's own CRI, and imagepin writes nothing until containerd restarts")
	}
	resp := &api.UninstallResponse{}
	// The lock first: if this is interrupted, the node must not have a lock without its images.
	for _, step := range []func(context.Context, bool, *api.UninstallResponse) error{n.dropPins, n.dropLabels, n.dropSnapshotLabels, n.dropLeases} {
		if err := step(ctx, dry, resp); err != nil {
			return nil, fmt.Errorf("uninstall (call it again to continue): %w", err)
		}
	}
	if dry {
		return resp, nil
	}
	if err := os.Remove(n.nodeKey); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("remove the node's key: %w", err)
	}
	if err := errors.Join(n.collected.Remove(), n.compared.Remove()); err != nil {
		return nil, err
	}
	if err := bandwidth.RemoveRate(n.bandwidth.path); err != nil {
		return nil, fmt.Errorf("remove the download rate: %w", err)
	}
	log.G(ctx).WithField("labels", resp.Labels).WithField("leases", resp.Leases).WithField("pins", resp.Pins).Info("imagepin is uninstalled")
	return resp, nil
}

func ownLabels(labels map[string]string) []string {
	var own []string
	for label := range labels {
		if strings.HasPrefix(label, imagepin.LabelPrefix) {
			own = append(own, label)
		}
	}
	slices.Sort(own)
	return own
}

// dropLabels removes imagepin's labels from the image records. It keeps the records, as stock containerd has them.
func (n *Node) dropLabels(ctx context.Context, dry bool, resp *api.UninstallResponse) error {
	all, err := n.containerd.Records.List(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, img := range all {
		own := ownLabels(img.Labels)
		if len(own) == 0 {
			continue
		}
		resp.Labels += int64(len(own))
		resp.Records++
		if dry {
			continue
		}
		without := images.Image{Name: img.Name, Labels: make(map[string]string, len(own))}
		fields := make([]string, len(own))
		for i, label := range own {
			without.Labels[label] = "" // removes the label
			fields[i] = "labels." + label
		}
		if _, err := n.containerd.Records.Update(ctx, without, fields...); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove labels from image record %s: %w", img.Name, err)
		}
	}
	return nil
}

// dropSnapshotLabels removes imagepin's labels from the snapshots of all runtime handlers.
func (n *Node) dropSnapshotLabels(ctx context.Context, dry bool, resp *api.UninstallResponse) error {
	for _, name := range n.runtimes().Snapshotters() {
		labels, err := health.RemoveLabels(ctx, n.containerd.Snapshots(name), dry)
		if resp.Labels += int64(labels); err != nil {
			return fmt.Errorf("snapshotter %s: %w", name, err)
		}
	}
	return nil
}

// dropPins removes all pins, including unreadable ones, and their namespace.
func (n *Node) dropPins(ctx context.Context, dry bool, resp *api.UninstallResponse) error {
	ctx = namespaces.WithNamespace(ctx, pin.Namespace)
	all, err := n.containerd.Pins.List(ctx)
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	resp.Pins = int64(len(all))
	if dry {
		return nil
	}
	for _, p := range all {
		if err := n.containerd.Pins.Delete(ctx, p.Name); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove pin %s: %w", p.Name, err)
		}
	}
	if err := n.dropLocks(ctx); err != nil {
		return fmt.Errorf("remove the lock: %w", err)
	}
	if err := n.containerd.Namespaces.Delete(ctx, pin.Namespace); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove namespace %s: %w", pin.Namespace, err)
	}
	return nil
}

// dropLocks removes the blobs of the node's locks, also those that are not collected yet: the namespace in ctx has to be empty
// before it is removed.
func (n *Node) dropLocks(ctx context.Context) error {
	var all []digest.Digest
	err := n.containerd.Content.Walk(ctx, func(info content.Info) error {
		all = append(all, info.Digest)
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range all {
		if err := n.containerd.Content.Delete(ctx, d); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// dropLeases deletes imagepin's leases, and collects the content that only they kept.
func (n *Node) dropLeases(ctx context.Context, dry bool, resp *api.UninstallResponse) error {
	manager := n.containerd.Leases
	all, err := manager.List(ctx, fmt.Sprintf("labels.%q", imagepin.LeaseLabel))
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	resp.Leases = int64(len(all))
	if dry {
		return nil
	}
	for i, l := range all {
		var opts []leases.DeleteOpt
		if i == len(all)-1 {
			opts = append(opts, leases.SynchronousDelete)
		}
		if err := manager.Delete(ctx, l, opts...); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete lease %s: %w", l.ID, err)
		}
	}
	return nil
}
