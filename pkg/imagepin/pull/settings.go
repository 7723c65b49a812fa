package pull

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/core/transfer/local"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Settings is the configuration of pulls. It is immutable; see [Config.Settings].
type Settings struct {
	// Verifiers has the image verifier plugins by name.
	Verifiers map[string]imageverifier.ImageVerifier
	// UnpackPlatforms has one entry for each snapshotter. Its Platform must match all platforms.
	UnpackPlatforms []unpack.Platform
	// Transfer fetches and unpacks images, see [NewTransfer].
	Transfer transfer.Transferrer
	// SandboxImage is the sandbox image. Images in its repository are unpacked also for guests, see package guestpull.
	SandboxImage string
	// Decompresses reports that layers are decompressed in this process, and not by containerd's decompressor.
	Decompresses bool
	// Durable makes the content store and a snapshot durable, and those below it. It returns [imagepin.Entry.Durable], which is empty
	// if it did not. It is nil if it never does.
	Durable func(ctx context.Context, sn store.Snapshot) (mark string, _ error)
	// DiscardLayers removes layers after unpacking.
	DiscardLayers bool
	// ProgressTimeout cancels a pull that makes no progress for this duration. Zero means no timeout.
	ProgressTimeout time.Duration
	// Timeout is how long a pull may take in total. Zero means no limit.
	Timeout time.Duration
}

// Limits bounds what one image fetches and unpacks at once. Images do not share the limits: a registry that sends slowly
// keeps only its own image waiting.
type Limits struct {
	// Downloads is the maximum number of layers that are downloaded at once. Zero means no limit.
	Downloads int
	// Unpacks is the maximum number of layers that are unpacked at once, in a snapshotter that supports rebase.
	Unpacks int
	// LayerFetchBuffer is the chunk size, in bytes, of a layer download. Zero fetches a layer in one request.
	LayerFetchBuffer int
	// ProgressTimeout is [Settings.ProgressTimeout].
	ProgressTimeout time.Duration
}

// NewTransfer returns containerd's transfer service, with limits for each image. Layers that a [download.Applier] unpacks
// are unpacked while they are downloaded. locks must be the same for all settings of the node.
func NewTransfer(c content.Store, l leases.Manager, platforms []unpack.Platform, limits Limits, locks *Locks) transfer.Transferrer {
	return &transfers{
		content: c, locks: locks, windows: download.NewWindows(limits.ProgressTimeout),
		config: local.TransferConfig{
			Leases:                     l,
			MaxConcurrentDownloads:     limits.Downloads,
			MaxConcurrentUnpacks:       limits.Unpacks,
			ConcurrentLayerFetchBuffer: limits.LayerFetchBuffer,
			UnpackPlatforms:            platforms,
		},
	}
}

// transfers runs each transfer with a transfer service of its own.
type transfers struct {
	content content.Store
	locks   *Locks
	windows *download.Windows
	config  local.TransferConfig
}

// Transfer implements transfer.Transferrer. src is a *source.
func (t *transfers) Transfer(ctx context.Context, src, dst any, opts ...transfer.Opt) error {
	from, ok := src.(*source)
	if !ok {
		return fmt.Errorf("transfer from %T: %w", src, errdefs.ErrNotImplemented)
	}
	locks, config := t.locks.of(from.registry), t.config
	config.DuplicationSuppressor = locks
	cs := download.NewStore(from.ingests(t.content), locks, t.windows)
	return local.NewTransferService(cs, nil, config).Transfer(ctx, src, dst, opts...)
}

// platformOf returns the entry of UnpackPlatforms for a snapshotter, or the zero value.
func (s *Settings) platformOf(snapshotter string) (p unpack.Platform) {
	if i := slices.IndexFunc(s.UnpackPlatforms, func(p unpack.Platform) bool { return p.SnapshotterKey == snapshotter }); i >= 0 {
		p = s.UnpackPlatforms[i]
	}
	return p
}

// IsSandboxImage reports whether a reference, normalized, can be that of the sandbox image, also by digest. The node may run the
// sandboxes of guests.
func (s *Settings) IsSandboxImage(name string) bool {
	ref, err := imagepin.ParseReference(s.SandboxImage)
	return err == nil && imagepin.InRepository(name, ref.Name())
}

// unpacksDownloads reports whether layers are unpacked in a snapshotter while they are downloaded.
func (s *Settings) unpacksDownloads(snapshotter string) bool {
	_, ok := s.platformOf(snapshotter).Applier.(*download.Applier)
	return ok
}
