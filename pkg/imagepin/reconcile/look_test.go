package reconcile

import (
	"context"
	"os"
	"reflect"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	localblobs "github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

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

	opened := 0
	store := ctdtest.Content{Store: d.config.Content, Before: ctdtest.On("ReaderAt", func(string) error {
		opened++
		return nil
	})}
	l := newLook(store)
	got, err := l.describe(ctx, first, rt)
	noError(t, err)
	want, _, err := pull.DescribeLocal(ctx, d.config.Content, first, rt)
	noError(t, err)
	if got.ImageID != want.ImageID || got.ChainID != want.ChainID || got.Size != want.Size || got.Root.Digest != first.Digest {
		t.Errorf("got %+v, want %+v", got, want)
	}
	once := opened
	for _, again := range []runtimeplatform.Runtime{rt, other} {
		if e, err := l.describe(ctx, first, again); err != nil || e.ImageID != want.ImageID {
			t.Errorf("got %+v, %v, want %+v", e, err, want)
		}
	}
	if once == 0 || opened != once {
		t.Errorf("opened %d blobs for one description and %d for three, want the same", once, opened)
	}
	if e, err := l.describe(ctx, second, rt); err != nil || e.ImageID == want.ImageID || opened == once {
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

// TestLookAtStart checks that a start describes an image as a later look does, with what the inventory has found and without the
// content store, and that it asks the store for a file that is damaged.
func TestLookAtStart(t *testing.T) {
	d := newDeepNode(t)
	ctx, done := d.Lease(t)
	defer done()
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "a", nil)
	d.Write(ctx, t, blobs)
	rt := d.config.Runtimes().Default()
	want, err := newLook(d.config.Content).describe(ctx, img.Manifest, rt)
	noError(t, err)
	have, err := d.config.Checker.Inventory(ctx)
	noError(t, err)

	asked := 0
	count := func(context.Context, ctdtest.Call) error {
		asked++
		return nil
	}
	local := localblobs.WithLocalFiles(ctdtest.Always(d.ContentDir()), ctdtest.Content{Store: d.Content, Before: count})
	atStart := func() (imagepin.Entry, error) {
		l := newLookAtStart(local, have)
		l.describeAll(ctx, []images.Image{{Target: img.Manifest}}, []runtimeplatform.Runtime{rt})
		return l.describe(ctx, img.Manifest, rt)
	}
	got, err := atStart()
	noError(t, err)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if asked > 0 {
		t.Errorf("the content store was asked %d times", asked)
	}
	noError(t, os.Truncate(d.File(img.Config.Digest), 1))
	if _, err := atStart(); err == nil || asked == 0 {
		t.Errorf("a damaged configuration: got %v, the content store was asked %d times", err, asked)
	}
}
