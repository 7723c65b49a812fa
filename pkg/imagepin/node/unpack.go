package node

import (
	"context"
	"errors"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/imgcrypt/v2"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
)

// applier is one of containerd's differs. The zero value is the differ that containerd's diff service selects.
type applier struct {
	diff.Applier
	differ string
}

// appliers returns the applier for each snapshotter for which the configuration of containerd's transfer service names
// a differ. It logs a warning for each entry that is ignored.
func (n *Node) appliers(a *active) map[string]applier {
	differs, ignored := a.CRI.Differs(a.runtimes)
	for _, w := range ignored {
		log.L.Warn(w)
	}
	all := make(map[string]applier)
	for snapshotter, differ := range differs {
		if differ == "" || (n.containerd.Differ == nil && differ == defaults.DefaultDiffer) {
			continue // containerd's diff service selects it
		}
		by, err := n.differ(differ)
		if err != nil {
			log.L.WithError(err).Warnf("[plugins.%q] unpack_config: differ %q is ignored for snapshotter %q, [plugins.\"io.containerd.service.v1.diff-service\"] default applies",
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

var errNoDiffer = errors.New("containerd's API does not allow selecting a differ")

// inParallel reports whether an applier may unpack the layers of an image in parallel, if the snapshotter can rebase
// them afterwards. Each layer is then unpacked like the lowest one. containerd's default differ applies a whiteout by
// removing the file that it names. In such a layer this file does not exist, so the whiteout is lost, and the file that
// it hides in a lower layer reappears. The diff service may select that differ.
func (a applier) inParallel(snapshotter string) bool {
	return snapshotter == upstream.Overlayfs || a.differ != "" && a.differ != defaults.DefaultDiffer
}

// applierOf replaces containerd's walking differ by [Walking], and the zero value by containerd's diff service. It also
// returns the options of the diff service's configuration, which apply only if that would select the differ.
func (n *Node) applierOf(by applier) (applier, []diff.ApplyOpt) {
	switch walking := n.containerd.Walking; {
	case walking != nil && by.differ == defaults.DefaultDiffer:
		by.Applier = walking.Applier
	case walking != nil && by.differ == "" && walking.Default:
		by.Applier = walking.Applier
		if walking.SyncFS {
			return by, []diff.ApplyOpt{diff.WithSyncFs(true)}
		}
	case by.Applier == nil:
		by.Applier = download.Decompressing(n.containerd.Content, n.containerd.Applier)
	default:
		by.Applier = download.Decompressing(n.containerd.Content, by.Applier)
	}
	return by, nil
}

// unpackPlatform returns how an applier unpacks layers in a snapshotter.
func (n *Node) unpackPlatform(a *active, name string, by applier) unpack.Platform {
	exports, capabilities := a.Snapshotters[name].unpacks(name, !a.CRI.Images.DisableSnapshotAnnotations)
	if !by.inParallel(name) || a.guests[name] { // a layer that is unpacked in parallel gets its parent when it is committed
		capabilities = nil
	}
	by, apply := n.applierOf(by)
	if a.CRI.Images.ImagePullWithSyncFS {
		apply = append(apply, diff.WithSyncFs(true))
	}
	if a.CRI.Images.ImageDecryption.KeyModel == "node" {
		apply = append(apply, decryptWithNodeKeys)
	}
	return unpack.Platform{
		Platform:                platforms.All, // the manifest is already selected
		SnapshotterKey:          name,
		Snapshotter:             n.unpacksInto(a, name),
		SnapshotterExports:      exports,
		SnapshotterCapabilities: capabilities,
		Applier:                 by.Applier,
		ApplyOpts:               apply,
	}
}

// unpacksInto returns the snapshotter that images are unpacked in.
func (n *Node) unpacksInto(a *active, name string) snapshots.Snapshotter {
	into := n.watched(a, name)
	if name == upstream.Blockfile {
		into = blockfile{into}
	}
	if a.guests[name] { // some images have files, such as the sandbox image
		into = guestpull.Snapshotter(into)
	}
	return into
}

// watched returns a snapshotter. It notes where the layers are that it unpacks, if they are made durable file by file.
func (n *Node) watched(a *active, name string) snapshots.Snapshotter {
	service := n.containerd.Snapshots(name)
	if known := n.knownSnapshots(a, name); known != nil {
		return known.Watch(service)
	}
	return service
}

// decryptWithNodeKeys decrypts layers with the node's stream processors and their keys.
func decryptWithNodeKeys(ctx context.Context, desc ocispec.Descriptor, c *diff.ApplyConfig) error {
	return encryption.WithDecryptedUnpack(&imgcrypt.Payload{})(ctx, desc, c)
}
