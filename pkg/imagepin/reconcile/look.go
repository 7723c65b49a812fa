package reconcile

import (
	"context"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/internal/blobcache"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// look describes the images of other tools from local content. It describes an image once for all its records, and for all
// snapshotters of a platform. It is safe for concurrent use.
type look struct {
	content content.Store
	have    *health.Inventory // nil if content may change

	mu     sync.Mutex
	images map[image]described
}

// image is the image below a root for one platform.
type image struct {
	root      digest.Digest
	mediaType string
	size      int64
	platform  string
}

type described struct {
	entry imagepin.Entry
	err   error
}

func newLook(content content.Store) *look {
	return &look{content: content, images: make(map[image]described)}
}

// newLookAtStart returns a look for a start, when nothing removes content after an inventory.
func newLookAtStart(content content.Store, have *health.Inventory) *look {
	l := newLook(blobcache.New(walked{content, have}))
	l.have = have
	return l
}

// lookAtATime is how many images are described at a time: with imagepin serve, each blob is a call.
const lookAtATime = 8

// describeAll describes images for several runtimes, so that describe has nothing to read for them any more.
func (l *look) describeAll(ctx context.Context, all []images.Image, runtimes []runtimeplatform.Runtime) {
	var calls errgroup.Group
	calls.SetLimit(lookAtATime)
	seen := make(map[digest.Digest]bool) // an image has several records
	for _, img := range all {
		if seen[img.Target.Digest] {
			continue
		}
		seen[img.Target.Digest] = true
		calls.Go(func() error {
			defer recoverPanic(ctx, "describe") // describe panics again where it is recovered as well
			for _, rt := range runtimes {
				_, _ = l.describe(ctx, img.Target, rt) // it returns the same error again
			}
			return nil
		})
	}
	_ = calls.Wait()
}

// describe returns an entry for the image below root without Key, ReadyAt and Record. It fails with ErrNotFound if the
// content for the platform of rt is not on the node.
func (l *look) describe(ctx context.Context, root ocispec.Descriptor, rt runtimeplatform.Runtime) (imagepin.Entry, error) {
	id := image{root.Digest, root.MediaType, root.Size, rt.Target.Platform}
	l.mu.Lock()
	d, ok := l.images[id]
	l.mu.Unlock()
	if ok {
		return d.entry, d.err
	}
	d.entry, d.err = l.read(ctx, root, rt)
	l.mu.Lock()
	l.images[id] = d
	l.mu.Unlock()
	return d.entry, d.err
}

func (l *look) read(ctx context.Context, root ocispec.Descriptor, rt runtimeplatform.Runtime) (imagepin.Entry, error) {
	e, manifest, err := pull.DescribeLocal(ctx, l.content, root, rt)
	if err != nil {
		return imagepin.Entry{}, err
	}
	e.Root, e.Source = root, l.source(ctx, manifest.Digest)
	e.RecordTarget = pull.RecordTarget(ctx, l.content, root, manifest, rt)
	return e, nil
}

// source returns whether another tool pulled an image or imported it from a file.
func (l *look) source(ctx context.Context, manifest digest.Digest) imagepin.Source {
	if l.have != nil {
		if b, ok := l.have.Blob(manifest); ok {
			return sourceIf(b.FromRegistry)
		}
	}
	info, err := l.content.Info(ctx, manifest)
	return sourceIf(err != nil || health.FromRegistry(info)) // the stricter of the two
}

func sourceIf(fromRegistry bool) imagepin.Source {
	if fromRegistry {
		return imagepin.SourceAdopted
	}
	return imagepin.SourceImported
}
