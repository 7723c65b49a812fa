package reconcile

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// openedContent counts the blobs that are opened.
type openedContent struct {
	content.Store
	opened int
}

func (c *openedContent) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	c.opened++
	return c.Store.ReaderAt(ctx, desc)
}

// TestLookDescribesOnce checks that an image is read once for all snapshotters of a platform, and again for another root.
func TestLookDescribesOnce(t *testing.T) {
	d := newDeepNode(t)
	ctx, done := d.Lease(t)
	defer done()
	blobs := ctdtest.Blobs{}
	first, second := blobs.Image("linux/amd64", "a", nil).Manifest, blobs.Image("linux/amd64", "b", nil).Manifest
	d.Write(ctx, t, blobs)
	rt := d.config.Runtimes().Default()
	other := rt
	other.Target.Snapshotter = "other"

	store := &openedContent{Store: d.config.Content}
	l := newLook(store)
	got, err := l.describe(ctx, first, rt)
	noError(t, err)
	want, _, err := pull.DescribeLocal(ctx, d.config.Content, first, rt)
	noError(t, err)
	if got.ImageID != want.ImageID || got.ChainID != want.ChainID || got.Size != want.Size || got.Root.Digest != first.Digest {
		t.Errorf("got %+v, want %+v", got, want)
	}
	once := store.opened
	for _, again := range []runtimeplatform.Runtime{rt, other} {
		if e, err := l.describe(ctx, first, again); err != nil || e.ImageID != want.ImageID {
			t.Errorf("got %+v, %v, want %+v", e, err, want)
		}
	}
	if once == 0 || store.opened != once {
		t.Errorf("opened %d blobs for one description and %d for three, want the same", once, store.opened)
	}
	if e, err := l.describe(ctx, second, rt); err != nil || e.ImageID == want.ImageID || store.opened == once {
		t.Errorf("another image: got %+v, %v", e, err)
	}
	missing := first
	missing.Digest = first.Digest[:len(first.Digest)-4] + "0000"
	for range 2 {
		if _, err := l.describe(ctx, missing, rt); !errdefs.IsNotFound(err) {
			t.Errorf("an image that is not on the node: got %v, want a NotFound error", err)
		}
	}
}
