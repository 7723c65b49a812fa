//go:build unix

package serve

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// limitedStore is an image store that fails as gRPC does if a list has too many images.
type limitedStore struct {
	images.Store
	max   int
	lists int
}

func (b *limitedStore) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	b.lists++
	all, err := b.Store.List(ctx, filters...)
	if len(all) > b.max {
		return nil, fmt.Errorf("grpc: trying to send message larger than max (%d vs. %d): %w", len(all), b.max, errdefs.ErrResourceExhausted)
	}
	return all, err
}

func imageNames(all []images.Image) []string {
	names := make([]string, len(all))
	for i, img := range all {
		names[i] = img.Name
	}
	slices.Sort(names)
	return names
}

// TestPages lists names of many forms in parts, with containerd's own metadata store and its filters.
func TestPages(t *testing.T) {
	n := ctdtest.New(t)
	var names []string
	for i := range 40 {
		d := digest.FromString(fmt.Sprint(i))
		names = append(names, d.String(), fmt.Sprintf("registry.example/team-%d/app@%s", i, d), fmt.Sprintf("registry.example/team-%d/app:latest", i))
	}
	for _, last := range lastBytes[:len(lastBytes)-1] {
		names = append(names, "name"+string(last), "na\"me\\"+string(last))
	}
	// Each of these is a suffix of another, and some have bytes that no reference has.
	names = append(names, "t", "st", "latest", ":latest", "app:latest", "name ", "größe", "größe]", `a,b`, `^$`, "日本")
	err := n.DB.Update(func(tx *bolt.Tx) error {
		ctx := boltutil.WithTransaction(n.Context(t), tx)
		for i, name := range names {
			labels := map[string]string{"even": fmt.Sprint(i%2 == 0)}
			target := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(name), Size: 1}
			if _, err := n.Images.Create(ctx, images.Image{Name: name, Target: target, Labels: labels}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, test := range []struct {
		max     int
		filters []string
	}{
		{len(names), nil}, {150, nil}, {30, nil},
		{30, []string{`labels."even"==true`}}, {30, []string{`labels."even"==true`, `labels."even"==false`}}, {30, []string{""}},
	} {
		b := &limitedStore{Store: n.Images, max: test.max}
		got, err := pagedImages{b}.List(n.Context(t), test.filters...)
		if err != nil {
			t.Fatalf("%d per message, filters %q: %v", test.max, test.filters, err)
		}
		want, err := n.Images.List(n.Context(t), test.filters...)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(imageNames(got), imageNames(want)) {
			t.Errorf("%d per message, filters %q: got %d images in parts, want %d", test.max, test.filters, len(got), len(want))
		}
		t.Logf("%d images, %d per message, filters %q: %d lists", len(got), test.max, test.filters, b.lists)
	}
	if got, err := n.Images.List(n.Context(t)); err != nil || !slices.Equal(imageNames(got), names) {
		t.Errorf("list without parts: got %d images, %v, want %d", len(got), err, len(names))
	}
}

// TestOtherErrorsAreNotPaged checks that a list is read in parts only if it is too large.
func TestOtherErrorsAreNotPaged(t *testing.T) {
	for _, err := range []error{errdefs.ErrUnavailable, fmt.Errorf("too many requests: %w", errdefs.ErrResourceExhausted)} {
		lists := 0
		store := ctdtest.Images{Before: ctdtest.On("List", func(string) error {
			lists++
			return err
		})}
		if _, got := (pagedImages{store}).List(t.Context()); got == nil || lists != 1 || !strings.Contains(got.Error(), err.Error()) {
			t.Errorf("got %v after %d lists, want %v after 1", got, lists, err)
		}
	}
}
