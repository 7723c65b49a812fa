package ctdtest

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/pkg/rootfs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
)

// Apply unpacks layers in a snapshotter as containerd does, and labels img's configuration to keep the snapshot.
func (n *Node) Apply(ctx context.Context, t testing.TB, img Image, layers []rootfs.Layer, snapshotter string) {
	t.Helper()
	noError(t, n.ApplyLayers(ctx, img.Config.Digest, img.ChainID, layers, snapshotter))
}

// ApplyLayers is [Node.Apply] for an image by its ID.
func (n *Node) ApplyLayers(ctx context.Context, id, chainID digest.Digest, layers []rootfs.Layer, snapshotter string) error {
	_, err := rootfs.ApplyLayers(ctx, layers, n.Snapshotter(snapshotter), apply.NewFileSystemApplier(n.Content))
	if err != nil {
		return err
	}
	label := upstream.SnapshotRef + snapshotter
	_, err = n.Content.Update(ctx, content.Info{Digest: id, Labels: map[string]string{label: chainID.String()}}, "labels."+label)
	return err
}
