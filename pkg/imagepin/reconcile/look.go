package reconcile

import (
	"context"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// look describes the images of other tools from local content. It describes an image once for all its records, and for all
// snapshotters of a platform. It is not safe for concurrent use.
type look struct {
	content content.Store
	images  map[image]described
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
	return &look{content, make(map[image]described)}
}

// describe returns an entry for the image below root without Key, ReadyAt and Record. It fails with ErrNotFound if the
// content for the platform of rt is not on the node.
func (l *look) describe(ctx context.Context, root ocispec.Descriptor, rt runtimeplatform.Runtime) (imagepin.Entry, error) {
	id := image{root.Digest, root.MediaType, root.Size, rt.Target.Platform}
	d, ok := l.images[id]
	if !ok {
		d.entry, d.err = l.read(ctx, root, rt)
		l.images[id] = d
	}
	return d.entry, d.err
}

func (l *look) read(ctx context.Context, root ocispec.Descriptor, rt runtimeplatform.Runtime) (imagepin.Entry, error) {
	e, manifest, err := pull.DescribeLocal(ctx, l.content, root, rt)
	if err != nil {
		return imagepin.Entry{}, err
	}
	e.Root, e.Source = root, source(ctx, l.content, manifest)
	e.RecordTarget = pull.RecordTarget(ctx, l.content, root, manifest, rt)
	return e, nil
}

// source returns whether another tool pulled an image or imported it from a file. containerd labels each blob with the
// registry that it came from.
func source(ctx context.Context, provider content.InfoProvider, manifest ocispec.Descriptor) imagepin.Source {
	info, err := provider.Info(ctx, manifest.Digest)
	if err != nil {
		return imagepin.SourceAdopted // the stricter of the two
	}
	for label := range info.Labels {
		if strings.HasPrefix(label, labels.LabelDistributionSource) {
			return imagepin.SourceAdopted
		}
	}
	return imagepin.SourceImported
}
