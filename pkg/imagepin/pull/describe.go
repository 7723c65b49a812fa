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

// Describe reads what an entry says of an image from its manifest and
// configuration: Manifest, ImageID, ChainID, Size and User. The size is without
// the indexes above the manifest. What has a configuration of another kind than
// an image's (WebAssembly, artifacts) is not unpacked and has no ChainID.
//
// It fails with ErrNotFound where content is missing and with
// ErrFailedPrecondition ([imagepin.ContentCorrupt]) where the configuration is
// not a JSON object.
func Describe(ctx context.Context, provider content.Provider, manifest ocispec.Descriptor) (imagepin.Entry, error) {
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
	e := imagepin.Entry{
		Manifest: manifest.Digest,
		ImageID:  m.Config.Digest,
		Size:     manifest.Size + m.Config.Size,
		User:     config.Config.User,
	}
	for _, l := range m.Layers {
		e.Size += l.Size
	}
	if images.IsConfigType(m.Config.MediaType) && len(config.RootFS.DiffIDs) > 0 {
		// ChainID works in place.
		e.ChainID = identity.ChainID(slices.Clone(config.RootFS.DiffIDs))
	}
	return e, nil
}

// RecordTarget is what the records of an image target, see package store. That
// of a native image is its root, so that a rollback finds what stock would have
// written; unless containerd's own way of reading that index would choose
// another manifest (it does not look into a second nested index where the first
// has no match, and orders Windows builds as text). An image of another
// platform is read by containerd only where a record targets its manifest.
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
