package usage

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// A failed pull has fetched a blob, a part of another one, and an image that is on the node.
func TestMeasureResumable(t *testing.T) {
	n := ctdtest.New(t, "first")
	ctx, all, failed := n.Context(t), ctdtest.Blobs{}, errors.New("the pull failed")
	img := all.Image("linux/amd64", "one", nil)
	fetched := all.Add("text/plain", []byte("fetched"))
	kept, err := lease.NewResumes(n.Leases, n.Content).With(ctx, func(ctx context.Context) error {
		n.Write(ctx, t, all)
		n.Keep(ctx, t, img, nil)
		w, err := n.Content.Writer(ctx, content.WithRef("part"), content.WithDescriptor(ocispec.Descriptor{Size: 10}))
		noError(t, err)
		_, err = w.Write([]byte("part"))
		noError(t, err)
		noError(t, w.Close())
		return failed
	}, func(error) bool { return true })
	if !kept || !errors.Is(err, failed) {
		t.Fatalf("got %t, %v", kept, err)
	}
	m := New(Config{
		Images:  fixed{store.Image{ID: img.Config.Digest, Entries: []imagepin.Entry{{RecordTarget: img.Manifest, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest}}}},
		Records: n.Images, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter,
	})
	u, err := m.Measure(ctx)
	noError(t, err)
	if want := (Sum{2, fetched.Size + 4}); u.Resumable != want || u.Other != (Sum{}) || u.Content.Count != 3 {
		t.Errorf("got %+v, want %+v of failed pulls", u, want)
	}
}
