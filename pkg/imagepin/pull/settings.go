package pull

import (
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/core/transfer/local"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
)

// Settings is the configuration of pulls. It does not change; see [Config.Settings].
type Settings struct {
	// Verifiers are the image verifier plugins by name.
	Verifiers map[string]imageverifier.ImageVerifier
	// UnpackPlatforms has one entry for each snapshotter; its Platform has to match all.
	UnpackPlatforms []unpack.Platform
	// Transfer fetches and unpacks, see [NewTransfer].
	Transfer transfer.Transferrer
	// DiscardLayers removes layers once they are unpacked.
	DiscardLayers bool
	// ProgressTimeout ends a pull that makes no progress for so long; zero never does.
	ProgressTimeout time.Duration
}

// Limits bound what one node fetches and unpacks at a time.
type Limits struct {
	// Downloads is how many layers are fetched at a time; zero is no limit.
	Downloads int
	// Unpacks is how many layers of one image are unpacked at a time in a snapshotter that can rebase.
	Unpacks int
	// LayerFetchBuffer is the size, in bytes, of the pieces that a layer is fetched in; zero fetches it whole.
	LayerFetchBuffer int
}

// NewTransfer returns containerd's transfer service. Locks are those of the node, whatever its settings are.
func NewTransfer(c content.Store, l leases.Manager, platforms []unpack.Platform, limits Limits, locks *Locks) transfer.Transferrer {
	return local.NewTransferService(c, nil, local.TransferConfig{
		Leases:                     l,
		MaxConcurrentDownloads:     limits.Downloads,
		MaxConcurrentUnpacks:       limits.Unpacks,
		ConcurrentLayerFetchBuffer: limits.LayerFetchBuffer,
		DuplicationSuppressor:      &locks.blobs,
		UnpackPlatforms:            platforms,
	})
}
