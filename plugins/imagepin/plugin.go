// Package imagepin makes imagepin a plugin of containerd.
//
// The plugin itself holds the configuration and the stores. Its effect comes
// from decorating containerd's CRI plugin, see [Decorate].
package imagepin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/imgcrypt/v2"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	// Type is the plugin's type.
	Type plugin.Type = "io.containerd.imagepin.v1"
	// ID is the plugin's ID.
	ID = "images"

	// namespace is containerd's namespace of the CRI.
	namespace = "k8s.io"
	// nodeKeyFile is in the plugin's root directory.
	nodeKeyFile = "node.key"
)

func init() {
	config, err := defaultSection()
	if err != nil {
		panic(err) // of a constant
	}
	registry.Register(&plugin.Registration{
		Type:   Type,
		ID:     ID,
		Config: config,
		Requires: []plugin.Type{
			plugins.CRIServicePlugin,
			plugins.EventPlugin,
			plugins.ImageVerifierPlugin,
			plugins.LeasePlugin,
			plugins.MetadataPlugin,
			plugins.MountManagerPlugin,
			plugins.SandboxStorePlugin,
			plugins.ServicePlugin,
			plugins.SnapshotPlugin,
			plugins.TransferPlugin,
		},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			s, err := newStores(ic)
			if err != nil {
				return nil, fmt.Errorf("imagepin: %w", err)
			}
			return s, nil
		},
	})
}

// stores is the plugin's instance: all that there is before the CRI.
type stores struct {
	own       settings
	cri       inherited
	client    *client.Client
	store     *store.Store
	db        *metadata.DB
	records   *records
	nodeKey   string // the file
	resolver  *resolve.Resolver
	pins      *pin.Store
	retainer  *pin.Retainer
	runtimes  *runtimeplatform.Set
	verifiers map[string]imageverifier.ImageVerifier
	unpack    []unpack.Platform
	roots     map[string]string // of snapshotters
	progress  time.Duration
}

func newStores(ic *plugin.InitContext) (*stores, error) {
	own, err := ic.Config.(*section).check()
	if err != nil {
		return nil, err
	}
	cri, err := inherit(ic)
	if err != nil {
		return nil, err
	}
	m, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return nil, err
	}
	db := m.(*metadata.DB)
	runtimes, err := cri.handlers(own, func(name string) bool { return db.Snapshotter(name) != nil })
	if err != nil {
		return nil, err
	}
	cri.warnUnheeded(ic)
	s := &stores{
		own: own, cri: cri, runtimes: runtimes, db: db, roots: make(map[string]string),
		nodeKey: filepath.Join(ic.Properties[plugins.PropertyRootDir], nodeKeyFile),
	}
	if s.progress, err = cri.progressTimeout(); err != nil {
		return nil, err
	}
	if s.client, err = client.New("",
		client.WithDefaultNamespace(namespace),
		client.WithDefaultPlatform(platforms.Default()),
		client.WithInMemoryServices(ic),
	); err != nil {
		return nil, err
	}
	s.records = newRecords(db, s.client.EventService())
	s.store = store.New(store.Config{
		Records:      s.records,
		Content:      s.client.ContentStore(),
		Leases:       s.client.LeasesService(),
		Snapshotter:  s.client.SnapshotService,
		Runtimes:     runtimes,
		PinnedImages: cri.pinnedImages(),
	})
	prover, err := resolve.LoadProver(s.nodeKey)
	if err != nil {
		return nil, err
	}
	s.resolver = resolve.New(resolve.Config{Registry: cri.registry(), Timeout: own.manifestPullTimeout, Prover: prover})
	s.pins = pin.New(pin.Config{
		Images: metadata.NewImageStore(db), Namespaces: s.client.NamespaceService(),
		MaxPerNamespace: own.maxPinsPerNamespace, Notify: s.notify,
	})
	s.retainer = &pin.Retainer{Leases: s.client.LeasesService(), Content: s.client.ContentStore(), MaxBytes: own.maxRetainedBytes}
	if s.verifiers, err = verifiers(ic); err != nil {
		return nil, err
	}
	for _, name := range runtimes.Snapshotters() {
		s.addSnapshotter(ic, name)
	}
	return s, nil
}

// verifiers are containerd's image verifier plugins. One that failed to load
// must not be left out: it could have refused.
func verifiers(ic *plugin.InitContext) (map[string]imageverifier.ImageVerifier, error) {
	loaded, err := ic.GetByType(plugins.ImageVerifierPlugin)
	if errors.Is(err, plugin.ErrPluginNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := make(map[string]imageverifier.ImageVerifier, len(loaded))
	for name, v := range loaded {
		all[name] = v.(imageverifier.ImageVerifier)
	}
	return all, nil
}

// remoteAnnotations is what a snapshotter exports that fetches layers lazily
// and wants to be told which.
const remoteAnnotations = "enable_remote_snapshot_annotations"

func (s *stores) addSnapshotter(ic *plugin.InitContext, name string) {
	exports := make(map[string]string)
	var capabilities []string
	if p := ic.Plugins().Get(plugins.SnapshotPlugin, name); p != nil {
		for k, v := range p.Meta.Exports {
			exports[k] = v
		}
		capabilities = p.Meta.Capabilities
	}
	if s.roots[name] = exports[plugins.SnapshotterRootDir]; s.roots[name] == "" {
		s.roots[name] = filepath.Join(filepath.Dir(ic.Properties[plugins.PropertyRootDir]), plugins.SnapshotPlugin.String()+"."+name)
	}
	if !s.cri.images.DisableSnapshotAnnotations {
		exports[remoteAnnotations] = "true"
	}
	if exports[remoteAnnotations] == "true" {
		// Unpacked in parallel, layers that are fetched lazily end up without
		// parents, and nothing fails.
		capabilities = nil
	}
	var apply []diff.ApplyOpt
	if s.cri.images.ImagePullWithSyncFS {
		apply = append(apply, diff.WithSyncFs(true))
	}
	if s.cri.images.ImageDecryption.KeyModel == "node" {
		apply = append(apply, decryptWithNodeKeys)
	}
	s.unpack = append(s.unpack, unpack.Platform{
		Platform:                platforms.All, // the manifest has been chosen
		SnapshotterKey:          name,
		Snapshotter:             s.client.SnapshotService(name),
		SnapshotterExports:      exports,
		SnapshotterCapabilities: capabilities,
		Applier:                 s.client.DiffService(),
		ApplyOpts:               apply,
	})
}

// decryptWithNodeKeys lets the node's stream processors decrypt layers with the
// keys they have.
func decryptWithNodeKeys(ctx context.Context, desc ocispec.Descriptor, c *diff.ApplyConfig) error {
	return encryption.WithDecryptedUnpack(&imgcrypt.Payload{})(ctx, desc, c)
}

func (s *stores) snapshotter(name string) snapshots.Snapshotter {
	return s.client.SnapshotService(name)
}

func (s *stores) pullConfig() pull.Config {
	return pull.Config{
		Content:                    s.client.ContentStore(),
		Leases:                     s.client.LeasesService(),
		Store:                      s.store,
		Resolver:                   s.resolver,
		Runtimes:                   s.runtimes,
		Policy:                     s.own.policy,
		Pins:                       s.pins,
		Retainer:                   s.retainer,
		Verifiers:                  s.verifiers,
		UnpackPlatforms:            s.unpack,
		DiscardLayers:              s.cri.images.DiscardUnpackedLayers,
		ProgressTimeout:            s.progress,
		MaxConcurrentDownloads:     s.cri.images.MaxConcurrentDownloads,
		MaxConcurrentUnpacks:       s.own.maxConcurrentUnpacks,
		ConcurrentLayerFetchBuffer: s.cri.images.ConcurrentLayerFetchBuffer,
	}
}
