package node

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/flight"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/lookup"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/reconcile"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/retain"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

var errNoCRI = errors.New("the CRI service is not connected yet")

// Namespace is containerd's namespace of the CRI.
const Namespace = "k8s.io"

// Containerd has the services of containerd that imagepin uses. All fields are required, except Differ, Walking, Holder and
// Collect.
type Containerd struct {
	Records store.Records
	// Pins is the image store without a namespace: pins have their own namespace.
	Pins       images.Store
	Content    content.Store
	Leases     leases.Manager
	Namespaces namespaces.Store
	Events     Events
	Applier    diff.Applier
	// Differ returns one of containerd's differs by name; nil if differs cannot be selected.
	Differ func(name string) (diff.Applier, error)
	// Walking takes the place of containerd's walking differ; nil if it does not.
	Walking   *Walking
	Snapshots func(snapshotter string) snapshots.Snapshotter
	// Holder protects what a call uses from garbage collection. If it is nil, leases do.
	Holder cri.Holder
	// Collect runs containerd's garbage collection and waits for it. If it is nil, the deletion of a lease does.
	Collect func(context.Context) error
	// AdoptAtATime is [store.Config.AdoptAtATime].
	AdoptAtATime int
}

// Walking is the walking differ, as an applier that unpacks layers while they are downloaded.
type Walking struct {
	Applier *download.Applier
	// Default reports that containerd's diff service always selects the walking differ. SyncFS reports that it then syncs
	// the file system.
	Default, SyncFS bool
}

// Events is containerd's event service.
type Events interface {
	events.Publisher
	reconcile.Subscriber
}

// Config has the dependencies of a Node.
type Config struct {
	Containerd
	Setup
	// NodeKey is the file of the key for proofs that a registry has accepted a credential. It is created if it does not
	// exist.
	NodeKey string
	// Transport sends the requests to registries; nil is containerd's own transport.
	Transport http.RoundTripper
	// Metrics registers the node's metrics; nil registers none.
	Metrics prometheus.Registerer
	// Mode is how imagepin runs: [ModePlugin] or [ModeServe].
	Mode string
	// KeysARecord is [store.Config.KeysARecord].
	KeysARecord int
	Parts       Parts
}

// The modes of a node.
const (
	ModePlugin = "plugin" // in containerd
	ModeServe  = "serve"  // as a separate process
)

// Node has the parts of imagepin that need no CRI service.
type Node struct {
	containerd Containerd
	nodeKey    string
	mode       string
	transport  http.RoundTripper
	registerer prometheus.Registerer
	prover     *resolve.Prover
	metrics    *metrics.Metrics
	locks      pull.Locks
	leases     *lease.Calls
	barrier    *durable.Barrier
	// collected and compared are the boots in which what pulls had left was collected, and in which images without a mark of
	// durability were compared with their layers.
	collected, compared durable.Boots
	bandwidth           downloadRate

	probes    flight.Group[struct{}] // questions to snapshotters, by name
	reconcile atomic.Int64           // the duration of the last build of the index in nanoseconds

	active   atomic.Pointer[active]
	store    *store.Store
	pins     *pin.Store
	fleet    Fleet // nil in a build without locks
	retainer *retain.Retainer
	decider  *decide.Decider
	lookups  *lookup.Looker
	proofs   decide.Proofs
	// openCluster is nil in a build without the part for clusters.
	openCluster OpenCluster
	// inUse returns the pins that are in use on the node; nil before a CRI service is connected.
	inUse func(ctx context.Context) (map[pin.ID]bool, error)
	// garbage has an element if a collection is pending.
	garbage chan struct{}
}

// New returns a node. If the configuration is invalid, it fails with ErrInvalidArgument and names the section and the
// key.
func New(c Config) (*Node, error) {
	n := &Node{
		containerd: c.Containerd, nodeKey: c.NodeKey, mode: c.Mode, transport: c.Transport, registerer: c.Metrics,
		metrics: metrics.New(), openCluster: c.Parts.Cluster, garbage: make(chan struct{}, 1), barrier: durable.New(),
		collected: durable.BootsIn(filepath.Dir(c.NodeKey), "boot-collected"), compared: durable.BootsIn(filepath.Dir(c.NodeKey), "boot-compared"),
	}
	n.leases = lease.NewCalls(c.Leases)
	n.containerd.Leases = n.leases
	if n.containerd.Holder == nil {
		n.containerd.Holder = lease.NewHolder(n.leases, n.containerd.Records)
	}
	n.containerd.Content = blobs.WithLocalFiles(func() string { return n.active.Load().ContentDir }, blobs.WithoutEqualUpdates(c.Content))
	var err error
	if n.prover, err = resolve.LoadProver(c.NodeKey); err != nil {
		return nil, err
	}
	n.store = store.New(store.Config{
		Records: n.containerd.Records, Content: n.containerd.Content, Leases: n.containerd.Leases, Snapshotter: n.containerd.Snapshots,
		Runtimes: n.runtimes, PinnedImages: func() []string { return n.active.Load().pinnedImages }, Released: n.CollectAsync,
		Collect: n.containerd.Collect, KeysARecord: c.KeysARecord, AdoptAtATime: n.containerd.AdoptAtATime,
	})
	n.pins = pin.New(pin.Config{
		Images: n.containerd.Pins, Namespaces: n.containerd.Namespaces, Notify: n.notify, InUse: n.pinsInUse,
		MaxPerNamespace: func() int { return n.active.Load().Settings.MaxPinsPerNamespace },
		Changed: func(ctx context.Context, roots ...digest.Digest) error {
			return n.retainer.Sync(inNamespace(ctx), roots...)
		},
	})
	n.retainer = retain.New(retain.Config{
		Leases: n.containerd.Leases, Transactions: n.containerd.Records, Content: n.containerd.Content, Pins: n.pins, Images: n.store,
		MaxBytes: func() int64 { return n.active.Load().Settings.MaxRetainedBytes }, Released: n.CollectAsync,
		Unpacks: func(snapshotter string) bool { return slices.Contains(n.runtimes().Snapshotters(), snapshotter) },
	})
	n.fleet = n.fleetOf(c.Parts.Fleet)
	n.proofs = decide.NodeProofs{Prover: registry{n}, Stores: []decide.ProofStore{n.store, n.pins}}
	n.lookups = lookup.New(lookup.Config{
		Pins: n.pins, Registry: registry{n}, Proofs: n.proofs, InUse: n.pinsInUse, LookedUp: n.metrics.LookedUp, Gone: n.notifyGone,
	})
	n.decider = decide.New(decide.Config{
		Policy: n.policy, Pins: n.pins, Images: n.store, Proofs: n.proofs,
		Registry: registry{n}, Retained: n.retainer, Cluster: n.cluster, Lock: n.lock(), NotInLock: n.metrics.NotInLock,
		LookedUp: n.lookups.Pulled,
	})
	first, err := n.activate(c.Setup)
	if err != nil {
		return nil, err
	}
	n.active.Store(first)
	if err := n.checkLock(context.Background()); err != nil {
		return nil, err
	}
	if n.fleet == nil {
		if w := first.Settings.UnusedDrops(); w != "" {
			log.L.Warn(w)
		}
	}
	n.bandwidth.load(c.NodeKey, first.Settings.MaxDownloadRate)
	return n, nil
}

// lock returns the authority of the node's lock, or nil in a build without locks.
func (n *Node) lock() decide.Lock {
	if n.fleet != nil {
		return n.fleet
	}
	return nil
}

// policy returns the current rules.
func (n *Node) policy() *policy.Policy { return n.active.Load().Settings.Policy }

// cluster returns the authority for the pins of the cluster, or nil.
func (n *Node) cluster() decide.Cluster {
	if c := n.active.Load().cluster; c != nil {
		return c
	}
	return nil
}

// runtimes returns the runtime handlers that are configured now.
func (n *Node) runtimes() *runtimeplatform.Set { return n.active.Load().runtimes }

// retainedRoots returns the digests of which content is retained.
func (n *Node) retainedRoots(ctx context.Context) (roots []digest.Digest, _ error) {
	all, err := lease.Retained(inNamespace(ctx), n.containerd.Leases)
	for _, l := range all {
		roots = append(roots, digest.Digest(l.Labels[lease.RetainRootLabel]))
	}
	return roots, err
}

// pinsInUse returns the pins that are in use on the node. It fails before a CRI service is connected.
func (n *Node) pinsInUse(ctx context.Context) (map[pin.ID]bool, error) {
	if n.inUse == nil {
		return nil, errNoCRI
	}
	return n.inUse(ctx)
}

// inNamespace returns a context for containerd's services.
func inNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, Namespace)
}
