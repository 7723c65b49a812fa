package apply

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/heaptest"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// writeFleet writes a bundle of many images, each for some platforms with layers of its own.
func writeFleet(t *testing.T, images, layers int, of ...string) (path string, l *lock.Lock) {
	t.Helper()
	f := source{make(ctdtest.Blobs), make(map[digest.Digest]ocispec.Descriptor)}
	var all []lock.Image
	for n := range images {
		var manifests []ocispec.Descriptor
		for _, platform := range of {
			p := platforms.MustParse(platform)
			m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
			m.Config = f.blobs.AddJSON(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: p, Author: fmt.Sprint(n)})
			for layer := range layers {
				m.Layers = append(m.Layers, f.blobs.Add(ocispec.MediaTypeImageLayerGzip, fmt.Appendf(nil, "%d %s %d", n, platform, layer)))
			}
			d := f.blobs.AddJSON(ocispec.MediaTypeImageManifest, m)
			d.Platform = &p
			manifests = append(manifests, d)
		}
		root := f.blobs.Index(manifests...)
		f.roots[root.Digest] = root
		all = append(all, withDigest(t, image(t, fmt.Sprintf("app:v%d", n), fmt.Sprint(n)), root.Digest))
	}
	l = lockOf(t, all...)
	path = filepath.Join(t.TempDir(), "fleet.tar.zst")
	_, err := bundle.Write(t.Context(), path, bundle.Options{Lock: l}, f)
	noError(t, err)
	return path, l
}

// TestMemoryOfBundle checks what an apply of a bundle needs in memory: the heap grows by about 200 bytes for each blob.
func TestMemoryOfBundle(t *testing.T) {
	for name, c := range map[string]struct {
		images, layers int
		platforms      []string
		limit          int64 // MiB
	}{
		"a fleet":     {50, 100, []string{"linux/amd64", "linux/arm64", "linux/arm/v7"}, 18},
		"many layers": {5, 8000, []string{"linux/amd64"}, 32},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, handlers[:1]...)
			path, l := writeFleet(t, c.images, c.layers, c.platforms...)
			result, grown := heaptest.Of(t, func() Result {
				f, err := Open(path)
				noError(t, err)
				defer f.Close()
				r := f.Request()
				r.DryRun = true
				result, err := e.Apply(e.ctx, r)
				noError(t, err)
				return result
			})
			if result.Images != c.images || len(result.Changes) != len(l.Images) {
				t.Errorf("got %d images, %d changes", result.Images, len(result.Changes))
			}
			t.Logf("%d layers: %d KiB at most, %d KiB kept", c.images*c.layers*len(c.platforms), grown.Peak>>10, grown.Kept>>10)
			if grown.Peak > c.limit<<20 || grown.Kept > 1<<20 {
				t.Errorf("%d layers: %d KiB at most, %d KiB kept", c.images*c.layers*len(c.platforms), grown.Peak>>10, grown.Kept>>10)
			}
		})
	}
}
