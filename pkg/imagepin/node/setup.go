package node

import (
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Setup is the part of a node's configuration that can change while the node runs; see [Service.Reload].
type Setup struct {
	Settings config.Settings
	CRI      config.CRI
	// ContainerdVersion is the version of the containerd that this process is in or connected to.
	ContainerdVersion string
	// ContentDir is the directory of containerd's own content store, which makes it possible to check files without
	// opening them. It is empty if not known.
	ContentDir string
	// Snapshotters has the snapshotters that containerd has loaded, by name.
	Snapshotters map[string]Snapshotter
	// Verifiers has the image verifier plugins, by name.
	Verifiers map[string]imageverifier.ImageVerifier
}

// Snapshotter is what containerd reports about a snapshotter.
type Snapshotter struct {
	// Root is the data directory of the snapshotter.
	Root         string
	Exports      map[string]string
	Capabilities []string
}

// active is a Setup and the values that are derived from it. It is immutable; Reload replaces it.
type active struct {
	Setup
	runtimes     *runtimeplatform.Set
	guests       map[string]bool // see forGuests
	resolver     *resolve.Resolver
	pull         *pull.Settings
	cri          *cri.Settings
	pinnedImages []string
	cluster      Cluster // nil if the node uses none
	syncer       *syncer
}

// activate derives the values from a setup. If the setup is invalid, it fails with ErrInvalidArgument and names the
// section and the key. It does not change the node.
func (n *Node) activate(s Setup) (*active, error) {
	a := &active{Setup: s, pinnedImages: s.CRI.PinnedImages()}
	loaded := func(name string) bool { _, ok := s.Snapshotters[name]; return ok }
	err := s.Settings.CheckParts(n.hasPart)
	if err != nil {
		return nil, err
	}
	if a.runtimes, err = s.CRI.Handlers(s.Settings, loaded); err != nil {
		return nil, err
	}
	if a.cluster, err = n.clusterOf(s.Settings.Cluster); err != nil {
		return nil, err
	}
	if unused := s.Settings.UnusedCluster(); unused != "" {
		log.L.Warn(unused)
	}
	var unpacked []string
	if a.guests, unpacked = a.forGuests(); len(unpacked) > 0 {
		log.L.Warn(strings.Join(unpacked, "; "))
	}
	progress, err := s.CRI.ProgressTimeout()
	if err != nil {
		return nil, err
	}
	a.resolver = resolve.New(resolve.Config{
		Registry: s.CRI.Registry(), Timeout: s.Settings.ManifestPullTimeout, Prover: n.prover, Transport: n.transport, Observer: n.metrics, Limiter: &n.bandwidth.limiter,
	})
	var platforms []unpack.Platform
	appliers := n.appliers(a)
	for _, name := range a.runtimes.Snapshotters() {
		platforms = append(platforms, n.unpackPlatform(a, name, appliers[name]))
	}
	a.pull = &pull.Settings{
		Verifiers: s.Verifiers, SandboxImage: s.CRI.SandboxImage(), UnpackPlatforms: platforms, Decompresses: n.containerd.Walking != nil, DiscardLayers: s.CRI.Images.DiscardUnpackedLayers, ProgressTimeout: progress, Timeout: s.Settings.PullTimeout,
		Transfer: pull.NewTransfer(n.containerd.Content, n.containerd.Leases, platforms, pull.Limits{
			Downloads: s.CRI.MaxConcurrentDownloads(), Unpacks: s.CRI.MaxConcurrentUnpacks(s.Settings), LayerFetchBuffer: s.CRI.ConcurrentLayerFetchBuffer(),
			ProgressTimeout: progress,
		}, &n.locks),
	}
	if a.syncer, err = n.syncerOf(a); err != nil {
		return nil, err
	}
	if a.syncer != nil {
		a.pull.Durable = a.syncer.image
	}
	a.cri = &cri.Settings{
		SnapshotRoot: func(name string) string { return s.Snapshotters[name].Root },
		StatsPeriod:  time.Duration(s.CRI.Images.StatsCollectPeriod) * time.Second,
		SandboxImage: s.CRI.SandboxImage(), WithoutSandboxImage: s.CRI.WithoutSandboxImage(), GuestPull: s.Settings.GuestPull, DiscardLayers: s.CRI.Images.DiscardUnpackedLayers,
		PinnedImages: a.pinnedImages,
	}
	return a, nil
}
