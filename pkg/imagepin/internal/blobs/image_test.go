package blobs_test

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// label labels the children of indexes and manifests as containerd does.
func label(ctx context.Context, t *testing.T, n *ctdtest.Node, all ...ocispec.Descriptor) {
	t.Helper()
	for _, desc := range all {
		_, err := images.SetChildrenLabels(n.Content, images.ChildrenHandler(n.Content))(ctx, desc)
		noError(t, err)
	}
}

// TestNeeded checks which blobs an image needs, for each way in which its record's target can reference its manifest. It
// prefers a path without damage, and reads one record for an image with one index.
func TestNeeded(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	all := ctdtest.Blobs{}
	img := all.Image("linux/amd64", "app", nil)
	inner := all.Index(img.Manifest)
	middle := all.Index(inner)
	deep := all.Index(middle)
	other := all.Index(img.Manifest, all.Image("linux/arm64", "app", nil).Manifest)
	several := all.Index(inner, other)
	absent := ctdtest.Blobs{}.Index(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: img.Layer.Digest, Size: 1})
	wide := all.Index(absent, inner)
	without := all.Index(absent)
	unlabelled := all.Index(inner, img.Layer)
	module := all.Add("application/wasm", []byte("module"))
	config := all.Add("application/vnd.wasm.config.v0+json", []byte("{}"))
	wasm := all.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config, Layers: []ocispec.Descriptor{module},
	})
	n.Write(ctx, t, all)
	label(ctx, t, n, img.Manifest, inner, middle, deep, other, several, wide, without, wasm)

	ordinary := blobs.Image{Target: inner.Digest, Manifest: img.Manifest.Digest, Config: img.Config.Digest, Unpacked: true}
	under := func(target ocispec.Descriptor) blobs.Image {
		i := ordinary
		i.Target = target.Digest
		return i
	}
	first, second := inner.Digest, other.Digest
	if second < first {
		first, second = second, first
	}
	for _, test := range []struct {
		name    string
		image   blobs.Image
		damaged []digest.Digest
		indexes []digest.Digest // below the target
		gone    bool
		layers  []digest.Digest
	}{
		{name: "index", image: ordinary},
		{name: "manifest", image: under(img.Manifest)},
		{name: "nested index", image: under(middle), indexes: []digest.Digest{inner.Digest}},
		{name: "damaged", image: under(middle), damaged: []digest.Digest{inner.Digest}, indexes: []digest.Digest{inner.Digest}},
		{name: "deeply nested index", image: under(deep), indexes: []digest.Digest{middle.Digest, inner.Digest}},
		{name: "several paths", image: under(several), indexes: []digest.Digest{first}},
		{name: "one path damaged", image: under(several), damaged: []digest.Digest{first}, indexes: []digest.Digest{second}},
		{name: "all paths damaged", image: under(several), damaged: []digest.Digest{first, second}, indexes: []digest.Digest{first}},
		{name: "another index not on the node", image: under(wide), indexes: []digest.Digest{inner.Digest}},
		{name: "nested index not on the node", image: under(without), gone: true},
		{name: "without labels", image: under(unlabelled)},
		{
			name:  "not unpacked",
			image: blobs.Image{Target: wasm.Digest, Manifest: wasm.Digest, Config: config.Digest}, layers: []digest.Digest{module.Digest},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, d := range test.damaged {
				noError(t, os.Rename(n.File(d), n.File(d)+".away"))
				defer func() { noError(t, os.Rename(n.File(d)+".away", n.File(d))) }()
			}
			needed, gone, err := test.image.Needed(blobs.LookIn(ctx, n.Content))
			noError(t, err)
			var got []digest.Digest
			for _, n := range needed {
				got = append(got, n.Digest)
			}
			want := []digest.Digest{test.image.Target}
			want = slices.Concat(want, test.indexes, []digest.Digest{test.image.Manifest, test.image.Config}, test.layers)
			if !slices.Equal(got, want) || gone != test.gone {
				t.Errorf("got %v, an index is gone: %v, want %v, %v", got, gone, want, test.gone)
			}
		})
	}
	reads := 0
	store := ctdtest.Content{Store: n.Content, Before: ctdtest.On("Info", func(string) error {
		reads++
		return nil
	})}
	_, _, err := ordinary.Needed(blobs.LookIn(ctx, store))
	if err != nil || reads != 1 {
		t.Errorf("an image with one index: read %d records, %v, want 1", reads, err)
	}
}
