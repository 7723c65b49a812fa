// Package imagepin makes imagepin a plugin of containerd.
//
// The plugin itself has the configuration and the parts of imagepin that need no CRI service. It takes effect through
// [Decorate], which decorates containerd's CRI plugin.
package imagepin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/gc"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/services"
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/imagepin/imagepin/internal/gcroots"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
	"github.com/imagepin/imagepin/pkg/imagepin/verifier"
)

const (
	// Type is the plugin's type.
	Type plugin.Type = "io.containerd.imagepin.v1"
	// ID is the plugin's ID.
	ID = "images"

	// nodeKeyFile is in the plugin's root directory.
	nodeKeyFile = "node.key"
)

func init() {
	section, err := config.DefaultTable()
	if err != nil {
		panic(err) // the value is a constant
	}
	registry.Register(&plugin.Registration{
		Type:   Type,
		ID:     ID,
		Config: section,
		Requires: []plugin.Type{
			plugins.CRIServicePlugin,
			plugins.DiffPlugin,
			plugins.EventPlugin,
			plugins.GCPlugin,
			plugins.ImageVerifierPlugin,
			plugins.LeasePlugin,
			plugins.MetadataPlugin,
			plugins.MountManagerPlugin,
			plugins.SandboxStorePlugin,
			plugins.ServicePlugin,
			plugins.SnapshotPlugin,
			plugins.TransferPlugin,
			node.PartPlugin,
		},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			n, err := newNode(ic)
			if err != nil {
				return nil, fmt.Errorf("imagepin: %w", err)
			}
			return n, nil
		},
	})
}

// newNode creates the plugin's instance: the parts of imagepin that need no CRI service.
func newNode(ic *plugin.InitContext) (*node.Node, error) {
	own, err := ic.Config.(*config.Table).Check()
	if err != nil {
		return nil, err
	}
	cri, err := inherit(ic)
	if err != nil {
		return nil, err
	}
	for _, w := range cri.Unsupported() {
		log.G(ic.Context).Warn(w)
	}
	if w := cri.Unsynced(own); w != "" {
		log.G(ic.Context).Warn(w)
	}
	m, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return nil, err
	}
	db := m.(*metadata.DB)
	c, err := client.New("",
		client.WithDefaultNamespace(node.Namespace),
		client.WithDefaultPlatform(platforms.Default()),
		client.WithInMemoryServices(ic),
	)
	if err != nil {
		return nil, err
	}
	verifiers, err := imageVerifiers(ic)
	if err != nil {
		return nil, err
	}
	walking, err := walking(ic, c.ContentStore())
	if err != nil {
		return nil, err
	}
	collect, err := collector(ic)
	if err != nil {
		return nil, err
	}
	parts, err := parts(ic)
	if err != nil {
		return nil, err
	}
	roots := gcroots.New()
	db.RegisterCollectibleResource(gcroots.ResourceType, roots)
	return node.New(node.Config{
		Containerd: node.Containerd{
			Records:    newRecords(db, c.EventService()),
			Pins:       metadata.NewImageStore(db),
			Content:    c.ContentStore(),
			Leases:     c.LeasesService(),
			Namespaces: c.NamespaceService(),
			Events:     c.EventService(),
			Applier:    c.DiffService(),
			Differ:     func(name string) (diff.Applier, error) { return differ(ic, name) },
			Walking:    walking,
			Snapshots:  c.SnapshotService,
			Holder:     roots,
			Collect:    collect,
		},
		Setup: node.Setup{
			ContainerdVersion: version.Version, Settings: own, CRI: cri, ContentDir: contentDir(ic), Snapshotters: snapshotters(ic, db), Verifiers: verifiers,
		},
		Mode:    node.ModePlugin,
		Metrics: prometheus.DefaultRegisterer, // containerd serves it on its metrics address
		NodeKey: filepath.Join(ic.Properties[plugins.PropertyRootDir], nodeKeyFile),
		Parts:   parts,
	})
}

// parts returns the parts that the build has, and that are not disabled.
func parts(ic *plugin.InitContext) (all node.Parts, _ error) {
	loaded, err := ic.GetByType(node.PartPlugin)
	if errors.Is(err, plugin.ErrPluginNotFound) {
		return all, nil
	}
	if err != nil {
		return all, err
	}
	for id, part := range loaded {
		switch open := part.(type) {
		case node.OpenCluster:
			all.Cluster = open
		case node.OpenFleet:
			all.Fleet = open
		default:
			return all, fmt.Errorf("plugin %s.%s is a %T, which is no part of imagepin", node.PartPlugin, id, part)
		}
	}
	return all, nil
}

// imageVerifiers returns containerd's image verifier plugins. It fails if one failed to load, because its checks must not be
// skipped.
func imageVerifiers(ic *plugin.InitContext) (map[string]imageverifier.ImageVerifier, error) {
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
		if c, ok := ic.Plugins().Get(plugins.ImageVerifierPlugin, name).Config.(*bindir.Config); ok {
			all[name] = verifier.NewBinDir(all[name], *c)
		}
	}
	return all, nil
}

// collector returns a function that runs containerd's garbage collection and waits for it.
func collector(ic *plugin.InitContext) (func(context.Context) error, error) {
	scheduler, err := ic.GetSingle(plugins.GCPlugin)
	if err != nil {
		return nil, err
	}
	s, ok := scheduler.(interface {
		ScheduleAndWait(ctx context.Context) (gc.Stats, error)
	})
	if !ok {
		return nil, fmt.Errorf("containerd's garbage collection is a %T, which cannot be started", scheduler)
	}
	return func(ctx context.Context) error {
		_, err := s.ScheduleAndWait(ctx)
		return err
	}, nil
}

// differ returns one of containerd's differ plugins.
func differ(ic *plugin.InitContext, name string) (diff.Applier, error) {
	d, err := ic.GetByID(plugins.DiffPlugin, name)
	if err != nil {
		return nil, err
	}
	a, ok := d.(diff.Applier)
	if !ok {
		return nil, fmt.Errorf("it is a %T, not an applier", d)
	}
	return a, nil
}

// walking returns the applier that takes the place of containerd's walking differ.
func walking(ic *plugin.InitContext, cs content.Provider) (*node.Walking, error) {
	var mounts mount.Manager // as in containerd's walking differ, which can do without it
	m, err := ic.GetSingle(plugins.MountManagerPlugin)
	if err == nil {
		mounts = m.(mount.Manager)
	} else if !errors.Is(err, plugin.ErrPluginNotFound) {
		return nil, err
	}
	// The keys of containerd's config in plugins/services/diff/local.go, whose type is not public.
	var service struct {
		Differs []string `toml:"default"`
		SyncFS  bool     `toml:"sync_fs"`
	}
	if err := readSection(ic, plugins.ServicePlugin, services.DiffService, &service); err != nil {
		return nil, err
	}
	archives := func(p content.Provider) diff.Applier {
		return apply.NewFileSystemApplierWithMountManager(p, mounts)
	}
	return &node.Walking{
		Applier: download.NewApplier(cs, archives),
		Default: slices.Equal(service.Differs, []string{defaults.DefaultDiffer}), SyncFS: service.SyncFS,
	}, nil
}

// contentDir returns the directory of containerd's own content store; "" if another content store is used.
func contentDir(ic *plugin.InitContext) string {
	if p := ic.Plugins().Get(plugins.ContentPlugin, "content"); p != nil {
		return p.Meta.Exports["root"]
	}
	return ""
}

// snapshotters returns what containerd's snapshotters report about themselves.
func snapshotters(ic *plugin.InitContext, db *metadata.DB) map[string]node.Snapshotter {
	all := make(map[string]node.Snapshotter)
	for name := range db.Snapshotters() {
		var sn node.Snapshotter
		if p := ic.Plugins().Get(plugins.SnapshotPlugin, name); p != nil {
			sn.Exports, sn.Capabilities = p.Meta.Exports, p.Meta.Capabilities
		}
		if sn.Root = sn.Exports[plugins.SnapshotterRootDir]; sn.Root == "" {
			sn.Root = filepath.Join(filepath.Dir(ic.Properties[plugins.PropertyRootDir]), plugins.SnapshotPlugin.String()+"."+name)
		}
		all[name] = sn
	}
	return all
}
