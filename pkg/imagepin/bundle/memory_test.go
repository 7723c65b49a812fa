package bundle_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
)

// generated is a source with one layer that is generated while it is read.
type generated struct {
	*memory
	layer ocispec.Descriptor
}

// content returns size bytes.
func content(size int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), size) }

func (g *generated) Fetch(ctx context.Context, repo reference.Named, d ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	if d.Digest == g.layer.Digest {
		return io.NopCloser(content(d.Size)), nil
	}
	return g.memory.Fetch(ctx, repo, d, offset)
}

// heap records the maximum of the heap.
type heap struct{ max uint64 }

func (h *heap) sample() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h.max = max(h.max, m.HeapInuse)
}

// peak returns the maximum of the heap while a bundle with a layer of size bytes is written and verified.
func peak(t *testing.T, size int64) uint64 {
	t.Helper()
	g := &generated{memory: newMemory()}
	d, err := digest.FromReader(content(size))
	if err != nil {
		t.Fatal(err)
	}
	g.layer = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: d, Size: size}
	config := g.put(ocispec.MediaTypeImageConfig, []byte(`{"os":"linux","architecture":"amd64"}`))
	root := g.putJSON(t, ocispec.MediaTypeImageManifest, ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: []ocispec.Descriptor{g.layer}})
	path := filepath.Join(t.TempDir(), "bundle.tar.zst")
	runtime.GC()
	var h heap
	calls := 0
	sample := func() {
		if calls++; calls%16 == 0 {
			h.sample()
		}
	}
	write(t, path, bundle.Options{
		Lock:     locked(t, map[string]ocispec.Descriptor{"registry.example/app:v1": root}),
		Progress: func(ocispec.Descriptor, int64, bool) { sample() },
	}, g)
	b := open(t, path)
	if err := b.Verify(t.Context(), func(int64, int64) { sample() }); err != nil {
		t.Fatal(err)
	}
	if h.max == 0 {
		t.Fatal("the heap was not measured")
	}
	return h.max
}

// TestMemoryDoesNotGrowWithTheSizeOfALayer compares the memory for two sizes of a layer. IMAGEPIN_BUNDLE_LAYER is the larger one in
// MiB (make soak): with the race detector, each MiB takes long.
func TestMemoryDoesNotGrowWithTheSizeOfALayer(t *testing.T) {
	size := int64(256)
	if s := os.Getenv("IMAGEPIN_BUNDLE_LAYER"); s != "" {
		var err error
		if size, err = strconv.ParseInt(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	small, large := peak(t, 32<<20), peak(t, size<<20)
	t.Logf("peak of the heap: %d MiB for 32 MiB, %d MiB for %d MiB", small>>20, large>>20, size)
	if large > small*3/2+32<<20 {
		t.Errorf("peak of the heap: %d MiB for 32 MiB, but %d MiB for %d MiB", small>>20, large>>20, size)
	}
}

// heapOf returns the size of what is in use, and of all that was allocated so far.
func heapOf() (used, all int64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.TotalAlloc)
}

// TestMemoryDoesNotGrowWithTheMetadata checks what a bundle with large configurations needs in memory: their number has no effect, and
// each can be read.
func TestMemoryDoesNotGrowWithTheMetadata(t *testing.T) {
	const number, size = 12, 8 << 20
	m := newMemory()
	images := make(map[string]ocispec.Descriptor)
	var configs []ocispec.Descriptor
	for n := range number {
		config := append(fmt.Appendf(nil, `{"os":"linux","architecture":"amd64","author":"%d %x`, n, random(uint64(n), 50_000)), bytes.Repeat([]byte("a"), size)...)
		config = append(config[:size-2], `"}`...)
		configs = append(configs, m.put(ocispec.MediaTypeImageConfig, config))
		images[fmt.Sprintf("registry.example/app:v%d", n)] = m.putJSON(t, ocispec.MediaTypeImageManifest, ocispec.Manifest{
			MediaType: ocispec.MediaTypeImageManifest, Config: configs[n], Layers: []ocispec.Descriptor{},
		})
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			write(t, path, bundle.Options{Lock: locked(t, images)}, m)
			before, allBefore := heapOf()
			b := open(t, path)
			after, allAfter := heapOf()
			t.Logf("%d MiB of metadata: %.1f MiB kept, %.1f MiB allocated", number*size>>20, mib(after-before), mib(allAfter-allBefore))
			if after-before > 8<<20 || allAfter-allBefore > 40<<20 {
				t.Errorf("%d MiB of metadata: %.1f MiB kept, %.1f MiB allocated", number*size>>20, mib(after-before), mib(allAfter-allBefore))
			}
			for _, d := range configs {
				if data, err := b.Blob(d.Digest); err != nil || !bytes.Equal(data, m.blobs[d.Digest]) {
					t.Errorf("%s differs: %v", d.Digest, err)
				}
			}
			if after, _ := heapOf(); after-before > 32<<20 {
				t.Errorf("after reading: %.1f MiB kept", mib(after-before))
			}
			runtime.KeepAlive(b)
		})
	}
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }
