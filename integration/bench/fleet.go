package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/offline"
)

// fleet is the configuration of the daemons of both sides. Scenarios with equal fleets share their daemons.
type fleet struct {
	discard  bool // discard_unpacked_layers
	parallel bool // containerd's settings for parallel fetching and unpacking
	// erofs makes containerd's EROFS snapshotter, with its differ, the default one.
	erofs bool
	// tarIndex makes that differ append the archive of a layer to an index of it, instead of converting it.
	tarIndex bool
	// fastest configures only imagepin, with what it is fastest with: EROFS. Stock has its defaults.
	fastest bool
	// both configures stock to unpack also in the second snapshotter.
	both bool
	// images is the number of synthetic images in the roots.
	images int
	// rushes is set for the daemons of pods that start at once, whose roots are empty at first.
	rushes bool
	// bundles is set for the daemons of bundles.
	bundles bool
	// serve runs imagepin as imagepin serve in front of a stock containerd.
	serve bool
	// unsynced starts a third daemon: imagepin with sync = false, beside stock.
	unsynced bool
}

// The settings to fetch and unpack eight layers at the same time. Stock's are only for the transfer service. If the CRI
// plugin's own max_concurrent_downloads were set, stock would pull without the transfer service and unpack one layer at
// a time.
const (
	stockParallelSettings = `
[plugins."io.containerd.transfer.v1.local"]
  max_concurrent_downloads = 8
  max_concurrent_unpacks = 8
`
	ourParallelSettings = `
[plugins."io.containerd.cri.v1.images"]
  max_concurrent_downloads = 8
[plugins."io.containerd.imagepin.v1.images"]
  max_concurrent_unpacks = 8
`
)

// noCollection disables automatic garbage collection, which runs after each hundred changes. Its transactions would be
// counted for the pull that happens at that time.
const noCollection = `
[plugins."io.containerd.gc.v1.scheduler"]
  startup_delay = "24h"
  mutation_threshold = 1000000
`

// bothSettings returns the settings with which stock unpacks in the second snapshotter. Without them, its transfer
// service unpacks only in the default one.
func bothSettings() string {
	var b strings.Builder
	for _, name := range []string{snapshotter, secondSnapshotter} {
		fmt.Fprintf(&b, "[[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]\n  platform = %q\n  snapshotter = %q\n", images.HostPlatform(), name)
	}
	return b.String()
}

// ourRules configure some repositories with features that stock does not have.
const ourRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
  match = ["**/always/**"]
  pull_behavior = "always"
[[plugins."io.containerd.imagepin.v1.images".rules]]
  match = ["**/pinned/**"]
  version_consistency = "node"
`

// secondHandler is the runtime handler with another snapshotter.
const (
	secondHandler     = "second"
	secondSnapshotter = "native"
)

// side is one of the two daemons.
type side struct {
	*node.Node
	ours bool
	// unsynced is the third daemon of a fleet, on stock's side.
	unsynced *side
	used     map[string]int // number of variants that were pulled, by repository
	// firstStart is how long the first start on the present root took, until it was used as a sample. On a root with
	// images, it ends when all are listed.
	firstStart time.Duration
	// databases are containerd's databases before the first start, by their path below the root. They are not set if the
	// root was empty.
	databases map[string][]byte
}

func (s *side) String() string {
	if s.ours {
		return "imagepin"
	}
	return "stock"
}

func (s *side) control() api.ControlClient { return api.NewControlClient(s.Conn()) }

// pair has both sides.
type pair struct{ stock, ours *side }

func (p *pair) sides() []*side { return []*side{p.stock, p.ours} }

// all returns all daemons.
func (p *pair) all() []*side {
	if p.stock == nil || p.stock.unsynced == nil {
		return p.sides()
	}
	return append(p.sides(), p.stock.unsynced)
}

// order returns the sides in the order of a repetition, which alternates.
func (p *pair) order(repetition int) []*side {
	if repetition%2 == 1 {
		return []*side{p.ours, p.stock}
	}
	return p.sides()
}

// open creates the daemons of a fleet and starts them.
func (b *bench) open(ctx context.Context, f fleet) (_ *pair, err error) {
	p := &pair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	binaries := []string{node.Stock, node.Ours}
	if f.unsynced {
		binaries = append(binaries, node.Ours)
	}
	for i, binary := range binaries {
		root, err := node.TempDir()
		if err != nil {
			return p, err
		}
		b.roots = append(b.roots, root)
		opts := node.Options{
			Mode: node.Plugin, Binary: binary, Root: root, SandboxImage: b.reg.Ref(pauseTag), DiscardUnpackedLayers: f.discard, LogLevel: "info",
			Handlers: []node.Handler{{Name: secondHandler, Snapshotter: secondSnapshotter}}, StartTimeout: 10 * time.Minute,
		}
		if f.serve {
			opts.Mode = node.Serve // stock containerd is the same in both modes
		}
		switch {
		case i == 2:
			opts.Extra = unsyncedSettings
		case binary == node.Ours && f.parallel:
			opts.Extra = ourParallelSettings
		case binary == node.Ours:
			opts.Extra = ourRules
		case f.parallel:
			opts.Extra = stockParallelSettings
		case f.both:
			opts.Extra = bothSettings()
		}
		if f.erofs || f.fastest && binary == node.Ours {
			opts.Snapshotter = node.EROFS
			var settings []string
			if f.tarIndex {
				settings = append(settings, "enable_tar_index = true")
			}
			opts = node.WithEROFS(opts, settings...)
		}
		if b.sizes.exact {
			opts.Extra += noCollection
		}
		n, err := node.New(opts)
		if err != nil {
			return p, err
		}
		s := &side{Node: n, ours: binary == node.Ours, used: make(map[string]int)}
		switch {
		case i == 2:
			p.stock.unsynced = s
		case s.ours:
			p.ours = s
		default:
			p.stock = s
		}
	}
	if f.images > 0 {
		if err := b.fillRoots(ctx, f.images, p); err != nil {
			return p, err
		}
	}
	for _, s := range p.all() {
		if err := s.begin(ctx, f.images); err != nil {
			return p, err
		}
		b.say("%s started in %s", s, measure.Duration(s.firstStart))
		v, err := s.Client().Version(ctx)
		if err != nil {
			return p, err
		}
		if !slices.Contains(b.versions, v.Version) {
			b.versions = append(b.versions, v.Version)
		}
	}
	return p, nil
}

// begin starts the daemon for the first time, and waits until all images of the root are listed.
func (s *side) begin(ctx context.Context, images int) error {
	start := time.Now()
	if err := s.Start(ctx); err != nil {
		return fmt.Errorf("starting %s: %w", s, err)
	}
	if images > 0 {
		if err := s.awaitImages(ctx, images); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	s.firstStart = time.Since(start)
	return nil
}

// databasesOf reads the databases of a root, in which a start writes.
func databasesOf(root string) (map[string][]byte, error) {
	all := make(map[string][]byte)
	for _, path := range []string{"io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1." + snapshotter + "/metadata.db"} {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return nil, err
		}
		all[path] = content
	}
	return all, nil
}

// forget makes the next start the first one on the root again. Blobs and the files of snapshots are still those of the
// databases, as no start deletes them.
func (s *side) forget() error {
	for path, content := range s.databases {
		if err := os.WriteFile(s.Path("root", path), content, 0o644); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.Path("root", imagepinDirectory))
}

// imagepinDirectory is the directory of imagepin's own files below containerd's root.
const imagepinDirectory = "io.containerd.imagepin.v1.images"

func (p *pair) close() error {
	var errs []error
	for _, s := range p.all() {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// filled is a root with synthetic images, which is copied for the daemons.
type filled struct {
	images    int
	dir       string
	databases map[string][]byte
}

// filledRoot returns a root with synthetic images. It writes them to memory, where the syncs of the snapshotter and of
// the content store are fast. It keeps only the last root.
func (b *bench) filledRoot(ctx context.Context, count int) (filled, error) {
	if b.filled.images == count {
		return b.filled, nil
	}
	if err := b.dropFilled(); err != nil {
		return filled{}, err
	}
	start := time.Now()
	dir, err := os.MkdirTemp(inMemory(), "imagepin-bench-")
	if err != nil {
		return filled{}, err
	}
	b.filled.dir = dir
	r, err := offline.Open(ctx, dir)
	if err != nil {
		return filled{}, err
	}
	if err := errors.Join(fill(ctx, r, count), r.Close()); err != nil {
		return filled{}, fmt.Errorf("filling a root: %w", err)
	}
	if b.filled.databases, err = databasesOf(dir); err != nil {
		return filled{}, err
	}
	b.filled.images = count
	b.say("%s synthetic images written in %s", measure.Thousands(count), measure.Duration(time.Since(start)))
	return b.filled, nil
}

// dropFilled removes the root that filledRoot keeps.
func (b *bench) dropFilled() error {
	dir := b.filled.dir
	b.filled = filled{}
	return os.RemoveAll(dir) // does nothing if dir is empty
}

// fillRoots copies a root with synthetic images for a pair.
func (b *bench) fillRoots(ctx context.Context, count int, p *pair) error {
	from, err := b.filledRoot(ctx, count)
	if err != nil {
		return err
	}
	start := time.Now()
	for _, s := range p.sides() {
		s.databases = from.databases
		if out, err := exec.CommandContext(ctx, "cp", "-a", from.dir+"/.", s.Path("root")).CombinedOutput(); err != nil {
			return fmt.Errorf("copying a root: %w: %s", err, out)
		}
	}
	b.say("copied for both sides in %s", measure.Duration(time.Since(start)))
	return nil
}

// inMemory returns a directory on a file system in memory, or "" if there is none.
func inMemory() string {
	const shm = "/dev/shm"
	if fi, err := os.Stat(shm); err == nil && fi.IsDir() {
		return shm
	}
	return ""
}

// status gets the status of an image by its reference, as kubelet does.
func (s *side) status(ctx context.Context, ref string) error {
	img, err := s.ImageStatus(ctx, ref, "")
	if err == nil && img == nil {
		err = fmt.Errorf("image %s not found", ref)
	}
	return err
}

// hasSnapshot returns an error if a snapshotter does not have a snapshot.
func (s *side) hasSnapshot(ctx context.Context, snapshotter, name string) error {
	_, err := s.Client().SnapshotService(snapshotter).Stat(namespaces.WithNamespace(ctx, node.Namespace), name)
	return err
}

// stream returns the number of images that StreamImages returns.
func (s *side) stream(ctx context.Context) (int, error) {
	stream, err := s.Images().StreamImages(ctx, &cri.StreamImagesRequest{})
	if err != nil {
		return 0, err
	}
	n := 0
	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		n += len(res.Images)
	}
}
