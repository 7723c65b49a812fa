package bundle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// memory is a source in memory. It counts and can break requests.
type memory struct {
	blobs map[digest.Digest][]byte
	types map[digest.Digest]string

	mu      sync.Mutex
	fetched map[digest.Digest][]int64 // offsets
	breaks  func(ocispec.Descriptor, int64, io.Reader) io.Reader
}

func newMemory() *memory {
	return &memory{blobs: map[digest.Digest][]byte{}, types: map[digest.Digest]string{}, fetched: map[digest.Digest][]int64{}}
}

func (m *memory) Resolve(_ context.Context, ref reference.Named) (ocispec.Descriptor, error) {
	d := ref.(reference.Canonical).Digest()
	data, ok := m.blobs[d]
	if !ok {
		return ocispec.Descriptor{}, fmt.Errorf("%s: %w", ref, errdefs.ErrNotFound)
	}
	return ocispec.Descriptor{MediaType: m.types[d], Digest: d, Size: int64(len(data))}, nil
}

func (m *memory) Fetch(_ context.Context, repo reference.Named, d ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fetched[d.Digest] = append(m.fetched[d.Digest], offset)
	data, ok := m.blobs[d.Digest]
	if !ok {
		return nil, fmt.Errorf("%s@%s: %w", repo.Name(), d.Digest, errdefs.ErrNotFound)
	}
	var r io.Reader = bytes.NewReader(data[offset:])
	if m.breaks != nil {
		r = m.breaks(d, offset, r)
	}
	return io.NopCloser(r), nil
}

// requests returns the number of requests for blobs, and resets it.
func (m *memory) requests() map[digest.Digest][]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := maps.Clone(m.fetched)
	clear(m.fetched)
	return was
}

func (m *memory) put(mediaType string, data []byte) ocispec.Descriptor {
	d := digest.FromBytes(data)
	m.blobs[d], m.types[d] = data, mediaType
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

func (m *memory) putJSON(t testing.TB, mediaType string, v any) ocispec.Descriptor {
	t.Helper()
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return m.put(mediaType, data)
}

// manifest adds a manifest with layers for a platform.
func (m *memory) manifest(t testing.TB, platform string, layers ...[]byte) ocispec.Descriptor {
	t.Helper()
	p := parsePlatform(t, platform)
	config := m.putJSON(t, ocispec.MediaTypeImageConfig, ocispec.Image{Platform: p, Config: ocispec.ImageConfig{Cmd: []string{platform}}})
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config}
	for _, l := range layers {
		manifest.Layers = append(manifest.Layers, m.put(ocispec.MediaTypeImageLayerGzip, l))
	}
	d := m.putJSON(t, ocispec.MediaTypeImageManifest, manifest)
	d.Platform = &p
	return d
}

// index adds an index of manifests.
func (m *memory) index(t testing.TB, manifests ...ocispec.Descriptor) ocispec.Descriptor {
	t.Helper()
	return m.putJSON(t, ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: manifests,
	})
}

// locked returns a lock of images, by the reference with a tag.
func locked(t testing.TB, images map[string]ocispec.Descriptor) *lock.Lock {
	t.Helper()
	var all []lock.Image
	for _, id := range slices.Sorted(maps.Keys(images)) {
		ref, err := imagepin.ParseReference(id)
		if err != nil {
			t.Fatal(err)
		}
		canonical, err := reference.WithDigest(reference.TrimNamed(ref), images[id].Digest)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, lock.Image{ID: id, Ref: canonical})
	}
	l, err := lock.New(all)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
