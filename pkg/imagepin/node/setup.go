package node

import (
	"time"

	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/imageverifier"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Setup is the part of a node's configuration that may change while it runs; see [Service.Reload].
type Setup struct {
	Settings config.Settings
	CRI      config.CRI
	// ContentDir is the directory of containerd's own content store: files are looked at there instead of being opened.
	// Empty where it is not known.
	ContentDir string
	// Snapshotters are those that containerd has loaded, by name.
	Snapshotters map[string]Snapshotter
	// Verifiers are the image verifier plugins by name.
	Verifiers map[string]imageverifier.ImageVerifier
}

// Snapshotter is what containerd reports of a snapshotter.
type Snapshotter struct {
	// Root is the directory that it keeps its data in.
	Root         string
	Exports      map[string]string
	Capabilities []string
}

// active is what follows from a Setup. It does not change: another one takes its place.
type active struct {
	Setup
	runtimes     *runtimeplatform.Set
	resolver     *resolve.Resolver
	pull         *pull.Settings
	cri          *cri.Settings
	pinnedImages []string
}

// activate makes what follows from a setup. It fails with ErrInvalidArgument where that is wrong, and names section and
// key. It changes nothing.
func (n *Node) activate(s Setup) (*active, error) {
	a := &active{Setup: s, pinnedImages: s.CRI.PinnedImages()}
	loaded := func(name string) bool { _, ok := s.Snapshotters[name]; return ok }
	var err error
	if a.runtimes, err = s.CRI.Handlers(s.Settings, loaded); err != nil {
		return nil, err
	}
	progress, err := s.CRI.ProgressTimeout()
	if err != nil {
		return nil, err
	}
	a.resolver = resolve.New(resolve.Config{
		Registry: s.CRI.Registry(), Timeout: s.Settings.ManifestPullTimeout, Prover: n.prover, Transport: n.transport, Observer: n.metrics,
	})
	var platforms []unpack.Platform
	appliers := n.appliers(a)
	for _, name := range a.runtimes.Snapshotters() {
		platforms = append(platforms, n.unpackPlatform(a, name, appliers[name]))
	}
	a.pull = &pull.Settings{
		Verifiers: s.Verifiers, UnpackPlatforms: platforms, DiscardLayers: s.CRI.Images.DiscardUnpackedLayers, ProgressTimeout: progress,
		Transfer: pull.NewTransfer(n.containerd.Content, n.containerd.Leases, platforms, pull.Limits{
			Downloads: s.CRI.MaxConcurrentDownloads(), Unpacks: s.CRI.MaxConcurrentUnpacks(s.Settings), LayerFetchBuffer: s.CRI.ConcurrentLayerFetchBuffer(),
		}, &n.locks),
	}
	a.cri = &cri.Settings{
		SnapshotRoot: func(name string) string { return s.Snapshotters[name].Root },
		StatsPeriod:  time.Duration(s.CRI.Images.StatsCollectPeriod) * time.Second,
		SandboxImage: s.CRI.SandboxImage(), WithoutSandboxImage: s.CRI.WithoutSandboxImage(), DiscardLayers: s.CRI.Images.DiscardUnpackedLayers,
		PinnedImages: a.pinnedImages,
	}
	return a, nil
}
