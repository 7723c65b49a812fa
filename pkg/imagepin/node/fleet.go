package node

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/control"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Fleet is the part for locks and bundles: the authority of the node's lock, and what applies locks.
type Fleet interface {
	decide.Lock
	// Load reads the lock of the node.
	Load(ctx context.Context) error
	// Serve returns what applies locks, when there is a CRI service.
	Serve(s FleetService) Locks
}

// Locks applies locks.
type Locks interface {
	control.Locks
	// Run applies the locks of the drop directories, and keeps the images of the lock ready, until ctx ends.
	Run(ctx context.Context)
	// Summary returns the state of the lock in numbers. It is nil if the node has no lock and no apply has failed.
	Summary() *api.LockSummary
}

// OpenFleet returns the part for locks and bundles of a node.
type OpenFleet func(n FleetNode) Fleet

// FleetNode is what a [Fleet] uses of the node.
type FleetNode struct {
	Containerd
	Store    *store.Store
	PinStore *pin.Store
	Runtimes func() *runtimeplatform.Set
	// Setup returns the current setup of the node.
	Setup func() Setup
	// Retain updates what pins retain after digests were added or removed, and Retained returns the digests of which content is retained.
	Retain   func(ctx context.Context, roots ...digest.Digest) error
	Retained func(ctx context.Context) ([]digest.Digest, error)
	// SyncNames makes what is written to the content store durable, and SyncImages images.
	SyncNames  func(ctx context.Context) error
	SyncImages func(ctx context.Context, entries []imagepin.Entry) error
}

// FleetService is what a [Fleet] uses of the node in front of a CRI service.
type FleetService struct {
	Puller *pull.Puller
	CRI    *cri.Service
}

// Parts are the parts of imagepin that a build can leave out: then they are nil.
type Parts struct {
	Cluster OpenCluster
	Fleet   OpenFleet
}

// hasPart reports whether the node has a part.
func (n *Node) hasPart(part string) bool {
	switch part {
	case config.ClusterPart:
		return n.openCluster != nil
	case config.FleetPart:
		return n.fleet != nil
	}
	return false
}

// fleetOf returns the part for locks, or nil in a build without it.
func (n *Node) fleetOf(open OpenFleet) Fleet {
	if open == nil {
		return nil
	}
	return open(FleetNode{
		Containerd: n.containerd, Store: n.store, PinStore: n.pins, Runtimes: n.runtimes, Setup: func() Setup { return n.active.Load().Setup },
		Retain: func(ctx context.Context, roots ...digest.Digest) error {
			return n.retainer.Sync(inNamespace(ctx), roots...)
		},
		Retained:  n.retainedRoots,
		SyncNames: func(ctx context.Context) error { return n.active.Load().syncer.names(ctx) },
		SyncImages: func(ctx context.Context, entries []imagepin.Entry) error {
			return n.active.Load().syncer.images(ctx, entries)
		},
	})
}

// checkLock fails if a lock is applied on a node without the part for locks: it would run other images.
func (n *Node) checkLock(ctx context.Context) error {
	if n.fleet != nil {
		return nil
	}
	_, err := n.containerd.Pins.Get(namespaces.WithNamespace(ctx, pin.Namespace), pin.LockRecord)
	switch {
	case err == nil:
		return fmt.Errorf("a lock is applied on this node, and plugin %s.%s is in disabled_plugins, or not in this build: %w",
			PartPlugin, config.FleetPart, errdefs.ErrFailedPrecondition)
	case errdefs.IsNotFound(err):
		return nil
	}
	return fmt.Errorf("read the record of the lock: %w", err)
}
