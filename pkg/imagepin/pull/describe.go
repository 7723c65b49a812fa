package pull

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Describe reads the Manifest, ImageID, ChainID, Size and User of an image from its manifest and configuration. The
// size does not include indexes. It has the real sizes of the blobs on the node, and for others, such as discarded
// layers, the sizes that the manifest declares. An image whose configuration has another media type (WebAssembly,
// artifacts) is not unpacked and has no ChainID.
//
// It fails with ErrNotFound if content is missing, and with ErrFailedPrecondition ([imagepin.ContentCorrupt]) if the
// configuration is not a JSON object.
func Describe(ctx context.Context, provider content.InfoReaderProvider, manifest ocispec.Descriptor) (imagepin.Entry, error) {
	m, err := images.Manifest(ctx, provider, manifest, platforms.All)
	if err != nil {
		return imagepin.Entry{}, err
	}
	b, err := content.ReadBlob(ctx, provider, m.Config)
	if err != nil {
		return imagepin.Entry{}, err
	}
	var config ocispec.Image
	if err := json.Unmarshal(b, &config); err != nil {
		return imagepin.Entry{}, malformed("image configuration", m.Config, err)
	}
	size, err := sizeOf(ctx, provider, append([]ocispec.Descriptor{manifest, m.Config}, m.Layers...)...)
	if err != nil {
		return imagepin.Entry{}, err
	}
	e := imagepin.Entry{
		Manifest: manifest.Digest,
		ImageID:  m.Config.Digest,
		Size:     size,
		User:     config.Config.User,
	}
	if images.IsConfigType(m.Config.MediaType) && len(config.RootFS.DiffIDs) > 0 {
		// ChainID overwrites its argument.
		e.ChainID = identity.ChainID(slices.Clone(config.RootFS.DiffIDs))
	}
	return e, nil
}

// RecordTarget returns the target for the records of an image, see package store.
//
// For a native image this is the root, so that a rollback finds the records that stock containerd would have written.
// It is the manifest if containerd itself would choose another manifest from that index: containerd does not search a
// second nested index if the first has no match, and it orders Windows builds as text.
//
// For an image of another platform it is the manifest, because containerd can read such an image only then.
func RecordTarget(ctx context.Context, provider content.Provider, root, manifest ocispec.Descriptor, rt runtimeplatform.Runtime) ocispec.Descriptor {
	if !rt.Native || images.IsManifestType(root.MediaType) {
		return manifest
	}
	config, err := images.Config(ctx, provider, root, platforms.Default())
	if err != nil {
		return manifest
	}
	if chosen, err := images.Config(ctx, provider, manifest, platforms.All); err != nil || chosen.Digest != config.Digest {
		return manifest
	}
	return root
}
