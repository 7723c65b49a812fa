package pull

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// source is the source of one image for containerd's transfer service. The image is resolved already. The session with
// the registry is opened when the first blob is needed, because most of the content may be on the node.
type source struct {
	name string
	ref  reference.Named
	// registry and repository are the domain and the name of the reference, if a registry can be asked.
	registry, repository string

	root    ocispec.Descriptor
	session func() (*resolve.Session, error)
	known   func() *resolve.Session // the session, also if it is not open; nil without a registry
	opened  atomic.Bool             // the session is open
	// trusted is true if content on the node may be used without the registry, see [vouching.trusts].
	trusted bool
	// served is called with each blob that the registry has served, except layers.
	served  func(digest.Digest)
	options []transfer.ImageResolverOption
	meter   *meter

	labels map[string]string // of what the registry serves
	leased leased
}

var (
	_ transfer.ImageFetcher              = (*source)(nil)
	_ transfer.ImageResolverOptionSetter = (*source)(nil)
)

// Resolve implements transfer.ImageResolver. It sends no request.
func (s *source) Resolve(context.Context) (string, ocispec.Descriptor, error) {
	return s.name, s.root, nil
}

// SetResolverOptions implements transfer.ImageResolverOptionSetter.
func (s *source) SetResolverOptions(options ...transfer.ImageResolverOption) { s.options = options }

// Fetcher implements transfer.ImageFetcher. The first fetch opens the session, with the options that the source has
// then.
func (s *source) Fetcher(context.Context, string) (transfer.Fetcher, error) {
	open := sync.OnceValues(func() (remotes.Fetcher, error) {
		session, err := s.session()
		if err != nil {
			return nil, err
		}
		session.SetOptions(s.options...)
		return session.Fetcher(context.Background())
	})
	return fetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (rc io.ReadCloser, err error) {
		defer func() {
			// The transfer service calls this in its own goroutines.
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		failpoint.Reach("pull.fetch")
		f, err := open()
		if err != nil {
			return nil, err
		}
		if rc, err = f.Fetch(ctx, desc); err != nil {
			return nil, RegistryError{err}
		}
		rc = body{rc, s.meter}
		if s.served == nil || images.IsLayerType(desc.MediaType) {
			return rc, nil
		}
		return verifying(rc, desc, s.served), nil
	}), nil
}

func (s *source) String() string { return s.name }

type fetcherFunc func(context.Context, ocispec.Descriptor) (io.ReadCloser, error)

func (f fetcherFunc) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	return f(ctx, desc)
}

// destination is the destination of one image for containerd's transfer service: a manifest that is unpacked in a
// snapshotter. It writes no image records.
type destination struct {
	runtime       runtimeplatform.Runtime
	discardLayers bool
	checkSizes    bool // rejects a manifest whose sizes are out of range
	meter         *meter
	manifest      ocispec.Descriptor // the manifest after the transfer
}

var (
	_ transfer.ImageStorer   = (*destination)(nil)
	_ transfer.ImageFilterer = (*destination)(nil)
	_ transfer.ImageUnpacker = (*destination)(nil)
)

// ImageFilter implements transfer.ImageFilterer. The manifest keeps its configuration, and its layers unless they are
// discarded.
func (d *destination) ImageFilter(h images.HandlerFunc, cs content.Store) images.HandlerFunc {
	labels := images.ChildGCLabels
	if d.discardLayers {
		labels = images.ChildGCLabelsFilterLayers
	}
	if d.checkSizes {
		h = withCheckedSizes(h)
	}
	if d.meter != nil {
		h = d.metered(h, cs)
	}
	return images.SetChildrenMappedLabels(cs, h, labels)
}

// metered returns a handler that also tells the meter how much of a manifest is not on the node.
func (d *destination) metered(h images.HandlerFunc, cs content.InfoProvider) images.HandlerFunc {
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		children, err := h(ctx, desc)
		if err == nil && images.IsManifestType(desc.MediaType) {
			var missing int64
			for _, c := range children {
				if _, err := cs.Info(ctx, c.Digest); err != nil {
					missing += c.Size
				}
			}
			d.meter.expect(missing)
		}
		return children, err
	}
}

// UnpackPlatforms implements transfer.ImageUnpacker.
func (d *destination) UnpackPlatforms() []transfer.UnpackConfiguration {
	return []transfer.UnpackConfiguration{{Platform: d.runtime.Spec, Snapshotter: d.runtime.Target.Snapshotter}}
}

// Store implements transfer.ImageStorer. The descriptor differs from the requested one if a Docker manifest was
// converted.
func (d *destination) Store(_ context.Context, desc ocispec.Descriptor, _ images.Store) ([]images.Image, error) {
	d.manifest = desc
	return nil, nil
}

// localSource returns a source without a registry. Every fetch fails with ErrNotFound.
func localSource(name string, manifest ocispec.Descriptor) *source {
	s := &source{name: name, root: manifest}
	s.session = func() (*resolve.Session, error) {
		s.opened.Store(true)
		return nil, fmt.Errorf("a layer is not on the node: %w", errdefs.ErrNotFound)
	}
	return s
}
