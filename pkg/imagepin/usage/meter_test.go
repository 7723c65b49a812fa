package usage

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

type fixed []store.Image

func (f fixed) Images() []store.Image { return f }

// A node has two images in one index, with a snapshot each. What an image record of another tool and a pin keep is shared.
func TestMeasure(t *testing.T) {
	n := ctdtest.New(t, "first")
	ctx, done := n.Lease(t)
	defer done()
	blobs := ctdtest.Blobs{}
	one, two := blobs.Image("linux/amd64", "one", nil), blobs.Image("linux/arm64", "two", nil)
	index := blobs.Index(one.Manifest, two.Manifest)
	foreign := blobs.Add("text/plain", []byte("of no image"))
	n.Write(ctx, t, blobs)
	n.Keep(ctx, t, one, &index)
	n.Keep(ctx, t, two, nil)
	n.Unpack(ctx, t, one, "first")
	n.Unpack(ctx, t, two, "first")

	entry := func(img ctdtest.Image, target ocispec.Descriptor, ref string) imagepin.Entry {
		return imagepin.Entry{
			Key:    imagepin.Key{Ref: ref, Target: runtimeplatform.Target{Snapshotter: "first"}},
			Record: "record of " + ref, RecordTarget: target, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID,
		}
	}
	m := New(Config{
		Images: fixed{
			{ID: one.Config.Digest, Entries: []imagepin.Entry{entry(one, index, "app@sha256:1"), entry(one, index, "app:v1")}},
			{ID: two.Config.Digest, Entries: []imagepin.Entry{entry(two, two.Manifest, "app:arm")}},
		},
		Records: n.Images, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter,
	})
	measure := func() Usage {
		t.Helper()
		u, err := m.Measure(ctx)
		noError(t, err)
		return u
	}
	size := func(img ctdtest.Image) int64 { return img.Manifest.Size + img.Config.Size + img.Layer.Size }
	wantUnique := func(when string, u Usage, ofOne, ofTwo int64) {
		t.Helper()
		for _, img := range u.Images {
			want, content := ofOne, size(one)+index.Size
			if img.ID == two.Config.Digest {
				want, content = ofTwo, size(two)
			}
			if img.Unique != want || img.Content != content || img.Unique+img.Shared != content+unpacked(img) {
				t.Errorf("%s: got %+v, want content %d, and %d unique", when, img, content, want)
			}
		}
	}
	u := measure()
	snapshot := unpacked(u.Images[0])
	wantUnique("at first", u, size(one)+index.Size+snapshot, size(two)+snapshot)
	if u.Content != (Sum{7, size(one) + size(two) + index.Size}) || u.Other != (Sum{1, foreign.Size}) {
		t.Errorf("got content %+v and other %+v", u.Content, u.Other)
	}
	if len(u.Snapshotters) != 1 || u.Snapshotters[0].Count != 2 || u.Snapshotters[0].Err != nil {
		t.Errorf("got snapshotters %+v", u.Snapshotters)
	}
	for _, img := range u.Images {
		if img.ID == one.Config.Digest && strings.Join(img.Refs, " ") != "app:v1 app@sha256:1" {
			t.Errorf("got references %q, want the tag first", img.Refs)
		}
	}

	_, err := n.Images.Create(ctx, images.Image{Name: "app:v1", Target: index})
	noError(t, err)
	wantUnique("with the record of a tag", measure(), size(one)+index.Size+snapshot, size(two)+snapshot)

	_, err = n.Images.Create(ctx, images.Image{Name: "other tool", Target: one.Manifest})
	noError(t, err)
	wantUnique("with a record of another tool", measure(), index.Size, size(two)+snapshot)

	l, err := n.Leases.Create(ctx, leases.WithID("retain"), leases.WithLabel(imagepin.LeaseLabel, "retain"))
	noError(t, err)
	noError(t, n.Leases.AddResource(ctx, l, leases.Resource{ID: two.Layer.Digest.String(), Type: "content"}))
	wantUnique("with a layer that a pin retains", measure(), index.Size, size(two)-two.Layer.Size+snapshot)
}

// A pin retains an image that was removed, in a snapshotter that no image has. Its snapshot is counted as that of no image.
func TestRetainedSnapshot(t *testing.T) {
	n := ctdtest.New(t, "first", "second")
	ctx, done := n.Lease(t)
	defer done()
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "one", nil)
	n.Write(ctx, t, blobs)
	n.Keep(ctx, t, img, nil)
	n.Unpack(ctx, t, img, "first")
	n.Unpack(ctx, t, img, "second")
	l, err := n.Leases.Create(ctx, leases.WithID("retain"), leases.WithLabel(imagepin.LeaseLabel, "retain"))
	noError(t, err)
	noError(t, n.Leases.AddResource(ctx, l, leases.Resource{ID: img.ChainID.String(), Type: upstream.SnapshotType + "second"}))
	entry := imagepin.Entry{
		Key:    imagepin.Key{Ref: "app:v1", Target: runtimeplatform.Target{Snapshotter: "first"}},
		Record: "app:v1", RecordTarget: img.Manifest, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID,
	}
	for _, test := range []struct {
		images fixed
		first  bool // has an image
	}{
		{fixed{{ID: img.Config.Digest, Entries: []imagepin.Entry{entry}}}, true},
		{nil, false},
	} {
		u, err := New(Config{Images: test.images, Records: n.Images, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter}).Measure(ctx)
		noError(t, err)
		for _, sn := range u.Snapshotters {
			size := sn.Size + sn.Other.Size
			of := sn.Sum
			if sn.Name == "second" || !test.first {
				of = sn.Other
			}
			if sn.Err != nil || size == 0 || of != (Sum{1, size}) || sn.Count+sn.Other.Count != 1 {
				t.Errorf("with %d images: got %+v", len(test.images), sn)
			}
		}
		if i := len(u.Snapshotters) - 1; i < 0 || u.Snapshotters[i].Name != "second" || test.first && i != 1 {
			t.Errorf("with %d images: got snapshotters %+v", len(test.images), u.Snapshotters)
		}
	}
}

// unpacked returns the size of an image's snapshots. All images of the test have snapshots of one size.
func unpacked(img Image) (total int64) {
	for _, u := range img.Unpacked {
		total += u.Size
	}
	return total
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
