package node

import (
	"context"
	"maps"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/imgcrypt/v2"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// remoteAnnotations is what a snapshotter exports that fetches layers lazily
// and wants to be told which.
const remoteAnnotations = "enable_remote_snapshot_annotations"

// unpackPlatform is how layers are unpacked in a snapshotter.
func (n *Node) unpackPlatform(name string) unpack.Platform {
	exports := maps.Clone(n.Snapshotters[name].Exports)
	if exports == nil {
		exports = make(map[string]string)
	}
	capabilities := n.Snapshotters[name].Capabilities
	if !n.CRI.Images.DisableSnapshotAnnotations {
		exports[remoteAnnotations] = "true"
	}
	if exports[remoteAnnotations] == "true" {
		// Unpacked in parallel, layers that are fetched lazily end up without
		// parents, and nothing fails.
		capabilities = nil
	}
	var apply []diff.ApplyOpt
	if n.CRI.Images.ImagePullWithSyncFS {
		apply = append(apply, diff.WithSyncFs(true))
	}
	if n.CRI.Images.ImageDecryption.KeyModel == "node" {
		apply = append(apply, decryptWithNodeKeys)
	}
	return unpack.Platform{
		Platform:                platforms.All, // the manifest has been chosen
		SnapshotterKey:          name,
		Snapshotter:             n.Snapshots(name),
		SnapshotterExports:      exports,
		SnapshotterCapabilities: capabilities,
		Applier:                 n.Applier,
		ApplyOpts:               apply,
	}
}

// decryptWithNodeKeys lets the node's stream processors decrypt layers with the
// keys they have.
func decryptWithNodeKeys(ctx context.Context, desc ocispec.Descriptor, c *diff.ApplyConfig) error {
	return encryption.WithDecryptedUnpack(&imgcrypt.Payload{})(ctx, desc, c)
}
