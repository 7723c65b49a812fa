package store_test

import (
	"cmp"
	"reflect"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	. "github.com/imagepin/imagepin/pkg/imagepin/store"
)

// TestInOrder compares the images in order with all images. Those of one moment stay the same while images are removed. It lists again
// after each way in which images come and go.
func TestInOrder(t *testing.T) {
	e := newEnv(t)
	e.fillAtOnce(t, 20)
	want := e.store.Images()
	slices.SortFunc(want, func(a, b Image) int { return cmp.Compare(a.ID, b.ID) })
	check := func(name string, want []Image) func() {
		count, images := e.store.InOrder()
		return func() {
			t.Helper()
			var got []Image
			for img := range images {
				img.Entries = slices.Clone(img.Entries)
				got = append(got, img)
			}
			if count != len(want) || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %d images %v, want %v", name, count, got, want)
			}
		}
	}
	check("all", want)()
	before := check("before the removal", want)
	for _, k := range want[3].Entries {
		if _, err := e.store.Remove(e.ctx, k.Key); err != nil {
			t.Fatal(err)
		}
	}
	before()
	check("after the removal", slices.Delete(slices.Clone(want), 3, 4))()
	for i := range 20 {
		if slices.ContainsFunc(want[3].Entries, func(k imagepin.Entry) bool { return k.Ref == benchRef(i) }) {
			if err := e.putOne(e.ctx, t, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	want[3] = Image{ID: want[3].ID, Entries: e.store.ByID(want[3].ID)}
	check("after it is here again", want)()
	for _, k := range want[5].Entries {
		if err := e.Images.Delete(e.ctx, k.Record); err != nil && !errdefs.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	if _, err := e.loadFor(e.ctx); err != nil {
		t.Fatal(err)
	}
	check("after a load", slices.Delete(slices.Clone(want), 5, 6))()
}
