package node

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/reconcile"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/retain"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Namespace is containerd's namespace of the CRI.
const Namespace = "k8s.io"

// Containerd is the services of containerd that imagepin works on. All fields
// are required, but ContentDir and Verifiers.
type Containerd struct {
	Records store.Records
	// Pins is the image store without a namespace: pins have their own.
	Pins    images.Store
	Content content.Store
	// ContentDir is the directory of containerd's own content store: files are
	// looked at there instead of being opened. Empty where it is not known.
	ContentDir string
	Leases     leases.Manager
	Namespaces namespaces.Store
	Events     Events
	Applier    diff.Applier
	// Differ gives one of containerd's differs by name; nil where they cannot be
	// told apart.
	Differ    func(name string) (diff.Applier, error)
	Snapshots func(snapshotter string) snapshots.Snapshotter
	// Snapshotters are those that are loaded, by name.
	Snapshotters map[string]Snapshotter
	// Verifiers are the image verifier plugins by name.
	Verifiers map[string]imageverifier.ImageVerifier
}

// Events is containerd's event service.
type Events interface {
	events.Publisher
	reconcile.Subscriber
}

// Snapshotter is what containerd says of a snapshotter.
type Snapshotter struct {
	// Root is the directory that it keeps its data in.
	Root         string
	Exports      map[string]string
	Capabilities []string
}

// Config is what a Node is made of.
type Config struct {
	Containerd
	Settings config.Settings
	CRI      config.CRI
	// NodeKey is the file of the key that credentials are noted under. It is
	// made where it is missing.
	NodeKey string
	// Transport sends the requests to registries; nil is containerd's own.
	Transport http.RoundTripper
	// KeysARecord is that of [store.Config].
	KeysARecord int
}

// Node is what there is of imagepin before the CRI.
type Node struct {
	Config
	runtimes *runtimeplatform.Set
	store    *store.Store
	decider  *decide.Decider
	proofs   decide.Proofs
	resolver *resolve.Resolver
	pins     *pin.Store
	retainer *retain.Retainer
	unpack   []unpack.Platform
	progress time.Duration
	// maxRetained is max_retained_bytes, which a reload changes.
	maxRetained *atomic.Int64
	// garbage has an element where there is something to collect.
	garbage chan struct{}
}

// New makes a node. Wrong configuration is ErrInvalidArgument, and names section
// and key.
func New(c Config) (*Node, error) {
	c.Leases = newLeases(c.Leases)
	n, err := read(c)
	if err != nil {
		return nil, err
	}
	n.store = store.New(n.storeConfig())
	n.pins = pin.New(pin.Config{
		Images: c.Pins, Namespaces: c.Namespaces, MaxPerNamespace: c.Settings.MaxPinsPerNamespace, Notify: n.notify,
		Changed: func(ctx context.Context, roots ...digest.Digest) error {
			return n.retainer.Sync(inNamespace(ctx), roots...)
		},
	})
	n.garbage = make(chan struct{}, 1)
	n.maxRetained = new(atomic.Int64)
	n.maxRetained.Store(c.Settings.MaxRetainedBytes)
	n.retainer = retain.New(retain.Config{
		Leases: c.Leases, Content: n.Content, Pins: n.pins, Images: n.store, MaxBytes: n.maxRetained.Load, Released: n.noteGarbage,
	})
	n.decide()
	return n, nil
}

// with makes a node of the same containerd with another configuration, that
// shares with n what is in memory.
func (n *Node) with(c Config) (*Node, error) {
	c.Leases = n.Leases
	next, err := read(c)
	if err != nil {
		return nil, err
	}
	next.store = n.store.With(next.storeConfig())
	next.pins, next.retainer, next.garbage = n.pins, n.retainer, n.garbage
	next.pins.Limit(c.Settings.MaxPinsPerNamespace)
	next.maxRetained = n.maxRetained
	next.maxRetained.Store(c.Settings.MaxRetainedBytes)
	next.decide()
	return next, nil
}

// decide makes what decides which digest a reference means.
func (n *Node) decide() {
	n.proofs = decide.NodeProofs{Resolver: n.resolver, On: []decide.Noted{n.store, n.pins}}
	n.decider = decide.New(decide.Config{
		Policy: n.Settings.Policy, Pins: n.pins, Images: n.store, Proofs: n.proofs, Registry: n.resolver, Retained: n.retainer,
	})
}

// read makes what of a node follows from its configuration alone.
func read(c Config) (*Node, error) {
	c.Content = blobs.At(c.ContentDir, c.Content)
	n := &Node{Config: c}
	loaded := func(name string) bool { _, ok := c.Snapshotters[name]; return ok }
	var err error
	if n.runtimes, err = c.CRI.Handlers(c.Settings, loaded); err != nil {
		return nil, err
	}
	if n.progress, err = c.CRI.ProgressTimeout(); err != nil {
		return nil, err
	}
	prover, err := resolve.LoadProver(c.NodeKey)
	if err != nil {
		return nil, err
	}
	n.resolver = resolve.New(resolve.Config{Registry: c.CRI.Registry(), Timeout: c.Settings.ManifestPullTimeout, Prover: prover, Transport: c.Transport})
	appliers := n.appliers()
	for _, name := range n.runtimes.Snapshotters() {
		n.unpack = append(n.unpack, n.unpackPlatform(name, appliers[name]))
	}
	return n, nil
}

func (n *Node) storeConfig() store.Config {
	return store.Config{
		Records:      n.Records,
		Content:      n.Content,
		Leases:       n.Leases,
		Snapshotter:  n.Snapshots,
		Runtimes:     n.runtimes,
		PinnedImages: n.CRI.PinnedImages(),
		KeysARecord:  n.KeysARecord,
	}
}

// pullConfig is what a puller works with. visible waits until the CRI service
// behind knows an image.
func (n *Node) pullConfig(visible visible) pull.Config {
	return pull.Config{
		Content:                    n.Content,
		Leases:                     n.Leases,
		Store:                      n.store,
		Resolver:                   n.resolver,
		Runtimes:                   n.runtimes,
		Decider:                    n.decider,
		Proofs:                     n.proofs,
		Pins:                       n.pins,
		Retained:                   n.retainer,
		Verifiers:                  n.Verifiers,
		UnpackPlatforms:            n.unpack,
		Visible:                    visible,
		Garbage:                    n.noteGarbage,
		DiscardLayers:              n.CRI.Images.DiscardUnpackedLayers,
		ProgressTimeout:            n.progress,
		MaxConcurrentDownloads:     n.CRI.MaxConcurrentDownloads(),
		MaxConcurrentUnpacks:       n.CRI.MaxConcurrentUnpacks(n.Settings),
		ConcurrentLayerFetchBuffer: n.CRI.ConcurrentLayerFetchBuffer(),
	}
}

// inNamespace gives a context for containerd's services.
func inNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, Namespace)
}
