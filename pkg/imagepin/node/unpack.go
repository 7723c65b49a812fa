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

// applier is one of containerd's differs, by name; the zero value is what its
// diff service chooses.
type applier struct {
	diff.Applier
	differ string
}

// appliers are what unpacks in each snapshotter for which containerd's transfer
// service names a differ. What is configured and not done is logged by name.
func (n *Node) appliers(a *active) map[string]applier {
	differs, ignored := a.CRI.Differs(a.runtimes)
	for _, w := range ignored {
		log.L.Warn(w)
	}
	all := make(map[string]applier)
	for snapshotter, differ := range differs {
		if differ == "" || (n.containerd.Differ == nil && differ == defaults.DefaultDiffer) {
			continue // what containerd's diff service chooses
		}
		by, err := n.differ(differ)
		if err != nil {
			log.L.WithError(err).Warnf("[plugins.%q] unpack_config: differ %q is ignored for snapshotter %q, [plugins.\"io.containerd.service.v1.diff-service\"] default holds",
				config.TransferSection, differ, snapshotter)
			continue
		}
		all[snapshotter] = applier{by, differ}
	}
	return all
}

func (n *Node) differ(name string) (diff.Applier, error) {
	if n.containerd.Differ == nil {
		return nil, errNoDiffer
	}
	return n.containerd.Differ(name)
}

var errNoDiffer = errors.New("containerd's socket lets nobody choose a differ")

// overlayfs is the snapshotter for which containerd's unpacker itself sees to
// whiteouts in layers that are unpacked in parallel.
const overlayfs = "overlayfs"

// inParallel reports whether an applier may unpack the layers of an image at
// once in a snapshotter that can put them together afterwards. Each of them then
// looks like the lowest one. containerd's default differ removes what the
// whiteouts of such a layer name, which is nothing, and what they hide in the
// layers below would come back. The diff service may choose that one.
func (a applier) inParallel(snapshotter string) bool {
	return snapshotter == overlayfs || a.differ != "" && a.differ != defaults.DefaultDiffer
}

// unpackPlatform is how layers are unpacked in a snapshotter by an applier.
func (n *Node) unpackPlatform(a *active, name string, by applier) unpack.Platform {
	exports := maps.Clone(a.Snapshotters[name].Exports)
	if exports == nil {
		exports = make(map[string]string)
	}
	capabilities := a.Snapshotters[name].Capabilities
	if !a.CRI.Images.DisableSnapshotAnnotations {
		exports[remoteAnnotations] = "true"
	}
	if exports[remoteAnnotations] == "true" || !by.inParallel(name) {
		// Unpacked in parallel, layers that are fetched lazily end up without
		// parents, and nothing fails.
		capabilities = nil
	}
	if by.Applier == nil {
		by.Applier = n.containerd.Applier
	}
	var apply []diff.ApplyOpt
	if a.CRI.Images.ImagePullWithSyncFS {
		apply = append(apply, diff.WithSyncFs(true))
	}
	if a.CRI.Images.ImageDecryption.KeyModel == "node" {
		apply = append(apply, decryptWithNodeKeys)
	}
	return unpack.Platform{
		Platform:                platforms.All, // the manifest has been chosen
		SnapshotterKey:          name,
		Snapshotter:             n.containerd.Snapshots(name),
		SnapshotterExports:      exports,
		SnapshotterCapabilities: capabilities,
		Applier:                 by.Applier,
		ApplyOpts:               apply,
	}
}

// decryptWithNodeKeys lets the node's stream processors decrypt layers with the
// keys they have.
func decryptWithNodeKeys(ctx context.Context, desc ocispec.Descriptor, c *diff.ApplyConfig) error {
	return encryption.WithDecryptedUnpack(&imgcrypt.Payload{})(ctx, desc, c)
}
