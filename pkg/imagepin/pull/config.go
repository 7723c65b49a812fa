package pull

import (
	"context"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config has the dependencies of a [Maker]. All fields are required, except Snapshots, RepairSnapshots, WaitCompared, Bandwidth and Clean.
type Config struct {
	Content  content.Store
	Leases   leases.Manager
	Images   *store.Store
	Pins     *decide.Decider
	Proofs   decide.Proofs
	Sessions Sessions
	Retained Retained
	Upstream Upstream
	Garbage  Garbage
	Locks    *Locks
	// Snapshots may be nil.
	Snapshots Snapshots
	// RepairSnapshots removes the snapshots of an image that are known to be damaged, or replaces their files if containers stand on
	// them. It may be nil: then a pull fails that needs such a snapshot.
	RepairSnapshots func(ctx context.Context, e imagepin.Entry) error
	// WaitCompared waits until the images of a repository that the node may have lost files of are compared with their layers. It may
	// be nil.
	WaitCompared func(ctx context.Context, ref string) error
	// Bandwidth limits what all pulls receive. nil means no limit.
	Bandwidth *bandwidth.Limiter
	// Settings returns the current settings. It is called for each pull.
	Settings func() *Settings
	// Runtimes returns the runtime handlers of the node.
	Runtimes func() *runtimeplatform.Set
	// Clean waits until the node has no snapshots any more that a pull had unpacked when the power was cut.
	Clean func(context.Context) error
}

// Snapshots knows which snapshots are damaged. [health.Checker] implements it.
type Snapshots interface {
	// SnapshotDamage describes the damage of the files of an entry's snapshots. It returns "" if none is known.
	SnapshotDamage(ctx context.Context, e imagepin.Entry) (why string, _ error)
}

// Sessions opens sessions with registries. [resolve.Resolver] implements it.
type Sessions interface {
	Session(ref reference.Named, c resolve.Credential) *resolve.Session
}

// Retained keeps the content that pins retain. [retain.Retainer] implements it.
type Retained interface {
	// SyncImage retains an image that has been recorded, if a pin does.
	SyncImage(ctx context.Context, e imagepin.Entry) error
	// Synced reports whether SyncImage has nothing to retain.
	Synced(e imagepin.Entry) bool
}

// Upstream is containerd's own CRI service.
type Upstream interface {
	// WaitVisible waits until upstream has an image ID under every name. It stops waiting for a name when wanted
	// returns false. It fails with [imagepin.UpstreamNotSynced].
	WaitVisible(ctx context.Context, id digest.Digest, names []string, wanted func(name string) bool) error
}

// Garbage runs containerd's garbage collection.
type Garbage interface {
	Collect(ctx context.Context) error
	// CollectAsync does not wait for the collection.
	CollectAsync()
}
