package ctdtest

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/pkg/rootfs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/upstream"
)

// Layers adds an image with these uncompressed layers, lowest first. Layer is its last one.
func (b Blobs) Layers(platform string, archives ...[]byte) (Image, []rootfs.Layer) {
	p := platforms.MustParse(platform)
	var (
		img    Image
		layers []rootfs.Layer
		blobs  []ocispec.Descriptor
	)
	fs := ocispec.RootFS{Type: "layers"}
	for _, archive := range archives {
		img.Layer = b.Add(ocispec.MediaTypeImageLayer, archive)
		blobs = append(blobs, img.Layer)
		fs.DiffIDs = append(fs.DiffIDs, img.Layer.Digest)
		layers = append(layers, rootfs.Layer{Blob: img.Layer, Diff: img.Layer})
	}
	img.ChainID = identity.ChainID(append([]digest.Digest(nil), fs.DiffIDs...))
	img.Config = b.AddJSON(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: p, RootFS: fs})
	img.Manifest = b.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: img.Config, Layers: blobs,
	})
	img.Manifest.Platform = &p
	return img, layers
}

// Apply unpacks layers in a snapshotter as containerd does, and labels img's configuration to keep the snapshot.
func (n *Node) Apply(ctx context.Context, t testing.TB, img Image, layers []rootfs.Layer, snapshotter string) {
	t.Helper()
	noError(t, n.ApplyLayers(ctx, img.Config.Digest, img.ChainID, layers, snapshotter))
}

// ApplyLayers is [Node.Apply] for an image by its ID.
func (n *Node) ApplyLayers(ctx context.Context, id, chainID digest.Digest, layers []rootfs.Layer, snapshotter string) error {
	_, err := rootfs.ApplyLayers(ctx, layers, n.Snapshotter(snapshotter), apply.NewFileSystemApplier(n.Content))
	if err != nil {
		return err
	}
	label := upstream.SnapshotRef + snapshotter
	_, err = n.Content.Update(ctx, content.Info{Digest: id, Labels: map[string]string{label: chainID.String()}}, "labels."+label)
	return err
}
