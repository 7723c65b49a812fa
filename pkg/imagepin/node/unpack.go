package node

import (
	"context"
	"errors"
	"maps"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/imgcrypt/v2"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
)

// remoteAnnotations is what a snapshotter exports that fetches layers lazily
// and wants to be told which.
const remoteAnnotations = "enable_remote_snapshot_annotations"

// appliers are what unpacks in each snapshotter for which containerd's transfer
// service names a differ. What is configured and not done is logged by name.
func (n *Node) appliers() map[string]diff.Applier {
	differs, ignored := n.CRI.Differs(n.runtimes)
	for _, w := range ignored {
		log.L.Warn(w)
	}
	all := make(map[string]diff.Applier)
	for snapshotter, differ := range differs {
		if differ == "" || (n.Differ == nil && differ == defaults.DefaultDiffer) {
			continue // what containerd's diff service chooses
		}
		err := errNoDiffer
		if n.Differ != nil {
			all[snapshotter], err = n.Differ(differ)
		}
		if err != nil {
			delete(all, snapshotter)
			log.L.WithError(err).Warnf("[plugins.%q] unpack_config: differ %q is ignored for snapshotter %q, [plugins.\"io.containerd.service.v1.diff-service\"] default holds",
				config.TransferSection, differ, snapshotter)
		}
	}
	return all
}

var errNoDiffer = errors.New("containerd's socket lets nobody choose a differ")

// unpackPlatform is how layers are unpacked in a snapshotter; without an applier
// of its own, containerd's diff service does it.
func (n *Node) unpackPlatform(name string, applier diff.Applier) unpack.Platform {
	if applier == nil {
		applier = n.Applier
	}
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
		Applier:                 applier,
		ApplyOpts:               apply,
	}
}

// decryptWithNodeKeys lets the node's stream processors decrypt layers with the
// keys they have.
func decryptWithNodeKeys(ctx context.Context, desc ocispec.Descriptor, c *diff.ApplyConfig) error {
	return encryption.WithDecryptedUnpack(&imgcrypt.Payload{})(ctx, desc, c)
}
