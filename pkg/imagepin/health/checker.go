package health

import (
	"context"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config configures a Checker. All fields are required.
type Config struct {
	Images      Images
	Content     content.Store
	Leases      leases.Manager
	Snapshotter func(name string) snapshots.Snapshotter
	// Runtimes returns the runtime handlers that are currently configured.
	Runtimes func() *runtimeplatform.Set
}

// Images are the images that are ready. [store.Store] implements it.
type Images interface {
	Images() []store.Image
	// Damaged returns the keys that are recorded but not ready.
	Damaged() []store.Damaged
	// ListRecorded lists the image records and the keys of one moment.
	ListRecorded(ctx context.Context) (store.Recorded, error)
	// RecordedSince reports whether an entry was recorded since a mark.
	Mark() store.Mark
	RecordedSince(before store.Mark, e imagepin.Entry) bool
	// Snapshots returns the snapshots that keys need.
	Snapshots() []store.Snapshot
	// HasSnapshot reports whether a snapshot is committed.
	HasSnapshot(ctx context.Context, snapshotter string, chainID digest.Digest) (bool, error)
	// ReleaseSnapshot removes all references to a snapshot except those of its children.
	ReleaseSnapshot(ctx context.Context, sn store.Snapshot) error
	// Collect runs containerd's garbage collection.
	Collect(ctx context.Context) error
}

// Checker compares the recorded with the actual state.
type Checker struct {
	config   Config
	damage   noted
	suspects suspects
}

// New returns a checker.
func New(c Config) *Checker { return &Checker{config: c} }
