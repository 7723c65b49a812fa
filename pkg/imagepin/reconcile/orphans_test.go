package reconcile

import (
	"testing"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// TestReleaseOrphans checks that a snapshot that no key needs is released by the second call after it was made, and that
// the snapshots of keys stay.
func TestReleaseOrphans(t *testing.T) {
	d := newEmptyNode(t)
	blobs := ctdtest.Blobs{}
	img, later := blobs.Image("linux/amd64", "app", nil), blobs.Image("linux/amd64", "later", nil)
	ctx, done := d.Lease(t)
	d.Write(ctx, t, blobs)
	for name, img := range map[string]ctdtest.Image{"app": img, "later": later} {
		d.Keep(ctx, t, img, nil)
		d.Unpack(ctx, t, img, "first")
		_, err := d.Images.Create(ctx, images.Image{Name: "registry.example/" + name + ":1", Target: img.Manifest})
		noError(t, err)
	}
	loaded, err := d.load(d.ctx)
	noError(t, err)
	noError(t, d.adopter.adoptAll(d.ctx, loaded.unkeyed, loaded.have))
	want := func(what string, app, other bool) {
		t.Helper()
		noError(t, d.ReleaseOrphans(d.ctx))
		d.Collect(t)
		for _, c := range []struct {
			name, snapshotter string
			img               ctdtest.Image
			want              bool
		}{{"app", "first", img, true}, {"later", "first", later, true}, {"app", "second", img, app}, {"later", "second", later, other}} {
			if got := d.HasSnapshot(t, c.snapshotter, c.img.ChainID); got != c.want {
				t.Errorf("%s: %s in %s: got snapshot %t, want %t", what, c.name, c.snapshotter, got, c.want)
			}
		}
	}
	d.Unpack(ctx, t, img, "second") // no runtime handler has it
	done()
	want("first call", true, false)
	ctx, done = d.Lease(t)
	d.Unpack(ctx, t, later, "second")
	done()
	want("second call", false, true)
	want("third call", false, false)
	want("fourth call", false, false)
}
