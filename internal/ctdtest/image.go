package ctdtest

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/containerd/containerd/v2/pkg/rootfs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Blobs has the content of images by digest.
type Blobs map[digest.Digest][]byte

// Image is one image of one platform.
type Image struct {
	Manifest ocispec.Descriptor // with the platform
	Config   ocispec.Descriptor
	Layer    ocispec.Descriptor
	ChainID  digest.Digest
}

// Add adds bytes.
func (b Blobs) Add(mediaType string, data []byte) ocispec.Descriptor {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	b[desc.Digest] = data
	return desc
}

// AddJSON adds a value as JSON.
func (b Blobs) AddJSON(mediaType string, v any) ocispec.Descriptor {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b.Add(mediaType, data)
}

// Image adds an image with one layer. Equal platforms and texts result in the same configuration. Annotations
// distinguish manifests that share a configuration.
func (b Blobs) Image(platform, text string, annotations map[string]string) Image {
	img, _ := b.image(platform, text, annotations, layerOf(text+" "+platform))
	return img
}

// Layers adds an image with these uncompressed layers, lowest first. Layer is its last one.
func (b Blobs) Layers(platform string, archives ...[]byte) (Image, []rootfs.Layer) {
	return b.image(platform, "", nil, archives...)
}

func (b Blobs) image(platform, author string, annotations map[string]string, archives ...[]byte) (img Image, layers []rootfs.Layer) {
	p := platforms.MustParse(platform)
	fs := ocispec.RootFS{Type: "layers"}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Annotations: annotations}
	for _, archive := range archives {
		img.Layer = b.Add(ocispec.MediaTypeImageLayer, archive)
		m.Layers = append(m.Layers, img.Layer)
		fs.DiffIDs = append(fs.DiffIDs, img.Layer.Digest)
		layers = append(layers, rootfs.Layer{Blob: img.Layer, Diff: img.Layer})
	}
	img.ChainID = identity.ChainID(slices.Clone(fs.DiffIDs))
	img.Config = b.AddJSON(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: p, RootFS: fs, Author: author})
	m.Config = img.Config
	img.Manifest = b.AddJSON(ocispec.MediaTypeImageManifest, m)
	img.Manifest.Platform = &p
	return img, layers
}

// Index adds an index.
func (b Blobs) Index(manifests ...ocispec.Descriptor) ocispec.Descriptor {
	return b.AddJSON(ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: manifests,
	})
}

// With returns these blobs and others together.
func (b Blobs) With(others Blobs) Blobs {
	all := maps.Clone(b)
	maps.Copy(all, others)
	return all
}

func layerOf(text string) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: "text", Mode: 0o644, Size: int64(len(text))}); err != nil {
		panic(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}
