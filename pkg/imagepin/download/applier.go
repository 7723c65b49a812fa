package download

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
)

// Applier unpacks layers while they are downloaded. While processors are free, it decompresses a layer ahead of unpacking,
// in a goroutine of its own. Otherwise it does what containerd's walking differ does.
type Applier struct {
	content  content.Provider
	archives func(content.Provider) diff.Applier
	running  atomic.Int64
}

var _ diff.Applier = (*Applier)(nil)

// NewApplier returns an Applier for layers in cs, and for those that a [Store] downloads to it. archives returns the
// applier that unpacks uncompressed archives from a provider, such as apply.NewFileSystemApplier of core/diff/apply. It
// must read an archive with content.NewReader.
func NewApplier(cs content.Provider, archives func(content.Provider) diff.Applier) *Applier {
	return &Applier{content: cs, archives: archives}
}

// Apply implements diff.Applier. It returns after the layer is committed to the content store.
func (a *Applier) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if IsPlain(ctx) {
		return a.plainly(ctx, desc, mounts, opts)
	}
	l := downloadsOf(ctx).of(desc.Digest)
	r := newReader(ctx, a.content, desc, l)
	applied, err := a.apply(ctx, r, desc, mounts, opts)
	if l == nil || errno.NoSpace(err) { // the rest of a download would need more space
		return applied, err
	}
	// A layer that is not the one that was asked for is the reason for any other error.
	if err := l.wait(ctx); err != nil {
		return ocispec.Descriptor{}, err
	}
	return applied, err
}

func (a *Applier) apply(ctx context.Context, r *reader, desc ocispec.Descriptor, mounts []mount.Mount, opts []diff.ApplyOpt) (_ ocispec.Descriptor, err error) {
	closed := sync.OnceValue(r.Close)
	defer func() { err = errors.Join(err, closed()) }()
	var config diff.ApplyConfig
	for _, opt := range opts {
		if err := opt(ctx, desc, &config); err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("failed to apply config opt: %w", err)
		}
	}
	from := io.Reader(r)
	if config.Progress != nil {
		p := &progress{Reader: r, report: config.Progress}
		defer p.end()
		from = p
	}
	running := a.running.Add(1)
	defer a.running.Add(-1)
	layer, err := decompress(ctx, desc.MediaType, from, config, 2*running <= int64(runtime.GOMAXPROCS(0)))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer func() {
		_ = closed() // ends a read that layer.Close waits for
		if cerr := layer.Close(); cerr != nil {
			log.G(ctx).WithError(cerr).WithField("digest", desc.Digest).Debug("cannot close the layer")
		}
	}()
	tar := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: desc.Digest}
	applied, err := a.archives(provider{layer}).Apply(ctx, tar, mounts, diff.WithSyncFs(config.SyncFs))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return applied, layer.Err()
}

// progress reports how much has been read. A stream processor may read in a goroutine that ends later.
type progress struct {
	io.Reader
	report func(int64)
	n      atomic.Int64
}

func (p *progress) Read(b []byte) (int, error) {
	p.report(p.n.Load())
	n, err := p.Reader.Read(b)
	p.n.Add(int64(n))
	return n, err
}

func (p *progress) end() { p.report(p.n.Load()) }
