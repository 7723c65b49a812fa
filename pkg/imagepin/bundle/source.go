package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// Source is where [Write] gets content from, usually a registry. Several goroutines call it.
type Source interface {
	// Resolve returns the media type and the size of the index or manifest of an image. ref has its digest.
	Resolve(ctx context.Context, ref reference.Named) (ocispec.Descriptor, error)
	// Fetch returns the content of a blob from an offset in bytes to its end.
	Fetch(ctx context.Context, repo reference.Named, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error)
}

// connections is the number of concurrent requests for metadata and small blobs.
const connections = 8

// item is a blob to fetch.
type item struct {
	desc ocispec.Descriptor // only media type, digest and size
	repo reference.Named    // of the first image that needs it
}

func (c *closure) item(n uint32) *item { return &item{c.desc(n), c.repo(n)} }

// choose returns a closure.present that chooses the manifests of platforms: for each platform those that containerd would
// choose on it, the best match and equal ones. It chooses what has no platform, and all if there are no platforms.
func choose(chosen []ocispec.Platform) func(*document) (func(int, ocispec.Descriptor) bool, error) {
	return func(doc *document) (func(int, ocispec.Descriptor) bool, error) {
		var children []ocispec.Descriptor
		if err := doc.manifests.each(func(d ocispec.Descriptor) error { children = append(children, d); return nil }); err != nil {
			return nil, err
		}
		present := make([]bool, len(children))
		for n, d := range children {
			present[n] = len(chosen) == 0 || d.Platform == nil
		}
		for _, p := range chosen {
			match := platforms.Only(p)
			var best *ocispec.Platform
			for _, d := range children {
				if d.Platform != nil && match.Match(*d.Platform) && (best == nil || match.Less(*d.Platform, *best)) {
					best = d.Platform
				}
			}
			for n, d := range children {
				if d.Platform != nil && match.Match(*d.Platform) && !match.Less(*best, *d.Platform) {
					present[n] = true
				}
			}
		}
		return func(n int, _ ocispec.Descriptor) bool { return present[n] }, nil
	}
}

// gatherer reads the indexes and manifests of locks.
type gatherer struct {
	source Source
	mu     sync.Mutex
	data   map[digest.Digest][]byte
}

// gather returns the closure of a lock, without layers.
func (g *gatherer) gather(ctx context.Context, l *lock.Lock, chosen []ocispec.Platform) (*closure, error) {
	firsts := distinct(l)
	roots := make([]ocispec.Descriptor, len(firsts))
	err := concurrently(ctx, len(firsts), func(ctx context.Context, n int) error {
		d, err := g.source.Resolve(ctx, firsts[n].Ref)
		if err == nil && d.Digest != firsts[n].Ref.Digest() {
			err = fmt.Errorf("%s resolves to %s", firsts[n].Ref, d.Digest)
		}
		roots[n] = d
		return err
	})
	if err != nil {
		return nil, err
	}
	first := newClosure(l)
	first.present = choose(chosen)
	if err := g.readIndexes(ctx, first, roots); err != nil {
		return nil, err
	}
	if err := matched(first, chosen); err != nil {
		return nil, err
	}
	// One index can have a manifest for another platform that another one has for a chosen platform.
	c := newClosure(l)
	c.present = func(*document) (func(int, ocispec.Descriptor) bool, error) {
		return func(_ int, d ocispec.Descriptor) bool {
			return first.blobs.Has(d.Digest) || !first.absent.Has(d.Digest)
		}, nil
	}
	if err := g.readIndexes(ctx, c, roots); err != nil {
		return nil, err
	}
	if err := c.collectManifests(); err != nil {
		return nil, err
	}
	return c, g.read(ctx, c, c.manifests, c.addManifest)
}

// matched fails with [imagepin.NoMatchingPlatform] (ErrNotFound) if no image has a manifest for the platforms.
func matched(c *closure, chosen []ocispec.Platform) error {
	for _, n := range c.roots {
		if images.IsManifestType(c.desc(n).MediaType) || len(c.childrenOf(n)) > 0 {
			return nil
		}
	}
	if len(c.roots) == 0 || len(chosen) == 0 {
		return nil
	}
	return &imagepin.Error{
		Reason: imagepin.NoMatchingPlatform, Class: errdefs.ErrNotFound,
		Message: fmt.Sprintf("no image of the lock has a manifest for %q", platformStrings(chosen)),
	}
}

func (g *gatherer) readIndexes(ctx context.Context, c *closure, roots []ocispec.Descriptor) error {
	for n, d := range roots {
		if err := c.addRoot(d, n); err != nil {
			return fmt.Errorf("%s: %w", c.firsts[n].Ref, err)
		}
	}
	for read := 0; read < len(c.indexes); {
		next := c.indexes[read:]
		read = len(c.indexes)
		if err := g.read(ctx, c, next, c.addIndex); err != nil {
			return err
		}
	}
	return nil
}

// read reads blobs concurrently, and uses them in their order.
func (g *gatherer) read(ctx context.Context, c *closure, blobs []uint32, use func(uint32, []byte) error) error {
	items := make([]*item, len(blobs))
	for at, n := range blobs {
		items[at] = c.item(n)
	}
	err := concurrently(ctx, len(items), func(ctx context.Context, n int) error { return g.fetch(ctx, items[n]) })
	if err != nil {
		return err
	}
	for at, i := range items {
		if err := use(blobs[at], g.data[i.desc.Digest]); err != nil {
			return fmt.Errorf("%s: %w", i.repo.Name(), err)
		}
	}
	return nil
}

func (g *gatherer) fetch(ctx context.Context, i *item) error {
	g.mu.Lock()
	_, ok := g.data[i.desc.Digest]
	g.mu.Unlock()
	if ok {
		return nil
	}
	data, err := fetchAll(ctx, g.source, i)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.data[i.desc.Digest] = data
	return nil
}

// fetchAll fetches a blob, and checks its size and digest.
func fetchAll(ctx context.Context, source Source, i *item) (_ []byte, err error) {
	if i.desc.Size == 0 { // a registry sends nothing
		if i.desc.Digest.Algorithm().FromBytes(nil) != i.desc.Digest {
			return nil, corrupt(i)
		}
		return nil, nil
	}
	r, err := source.Fetch(ctx, i.repo, i.desc, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	data, err := readAll(r, i.desc.Size)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", i.repo.Name(), i.desc.Digest, err)
	}
	if got := i.desc.Digest.Algorithm().FromBytes(data); got != i.desc.Digest {
		return nil, corrupt(i)
	}
	return data, nil
}

// corrupt returns an [imagepin.ContentCorrupt] error (ErrFailedPrecondition).
func corrupt(i *item) error {
	return &imagepin.Error{
		Reason: imagepin.ContentCorrupt, Class: errdefs.ErrFailedPrecondition, Ref: i.repo.Name() + "@" + i.desc.Digest.String(),
		Message: "the content from the registry does not match this digest",
	}
}

// concurrently calls f for 0 to n-1.
func concurrently(ctx context.Context, n int, f func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(connections)
	for i := range n {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return f(ctx, i)
		})
	}
	return group.Wait()
}

// sinceLayers returns the layers of a closure that an earlier one has too, sorted. The metadata of a bundle is complete, so a
// layer that is metadata of another image is not among them.
func sinceLayers(c, earlier *closure) []digest.Digest {
	var omitted []digest.Digest
	for _, n := range c.ofLayers {
		if d := c.blobs.Digest(int(n)); earlier.has(d, isLayer) && c.at(n).flags&isNeeded == 0 {
			omitted = append(omitted, d)
		}
	}
	slices.Sort(omitted)
	return omitted
}
