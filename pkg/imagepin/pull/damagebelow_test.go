package pull

import (
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// TestPullReplacesDamageBelow checks that a pull replaces a damaged nested index, and a damaged layer that it does not
// unpack, with one request.
func TestPullReplacesDamageBelow(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			d := newDamaged(t)
			all := d.blobs.With(nil)
			outer := all.Index(d.index)
			module := all.Add("application/wasm", []byte("a WebAssembly module"))
			wasm := all.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
				Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
				Config: all.Add("application/vnd.wasm.config.v0+json", []byte("{}")), Layers: []ocispec.Descriptor{module},
			})
			ctx, done := d.Lease(t)
			defer done()
			d.Write(ctx, t, all)
			for _, desc := range []ocispec.Descriptor{outer, wasm} {
				_, err := images.SetChildrenLabels(d.Content, images.ChildrenHandler(d.Content))(ctx, desc)
				noError(t, err)
			}
			d.serve(all, nil)
			job := Job{Verdict: decide.Verdict{Ref: d.named(t), Root: outer}, Runtime: d.config.Runtimes().Default(), Record: Restore(imagepin.Entry{})}

			fault(t, d.File(d.index.Digest))
			img, err := d.maker.unpacker.choose(ctx, job, func(error) {})
			noError(t, err)
			if img.manifest().Digest != d.img.Manifest.Digest {
				t.Errorf("got manifest %s, want %s", img.manifest().Digest, d.img.Manifest.Digest)
			}
			fault(t, d.File(module.Digest))
			noError(t, d.maker.unpacker.fetcher.damage.verifyManifest(ctx, img.source, wasm))
			for what, desc := range map[string]ocispec.Descriptor{"nested index": d.index, "layer": module} {
				if err := blobs.Verify(ctx, d.Content, desc.Digest, desc.Size, nil); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			if n := d.requestCount(); n != 2 {
				t.Errorf("got %d requests, want 2", n)
			}
		})
	}
}
