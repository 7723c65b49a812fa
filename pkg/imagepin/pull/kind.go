package pull

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// explained returns the error of an image that was not unpacked. containerd unpacks only layers and configurations with the
// media types of images, and omits the others without an error. If that is the reason, the result is an
// [imagepin.ContentCorrupt] (ErrFailedPrecondition) that names the media type.
func explained(ctx context.Context, provider content.Provider, manifest ocispec.Descriptor, err error) error {
	if err == nil || AtRegistry(err) {
		return err
	}
	some := strings.Contains(err.Error(), upstream.LayerCount) // of the layers are not unpacked
	if !some && !errdefs.IsNotFound(err) {
		return err
	}
	m, merr := images.Manifest(ctx, provider, manifest, platforms.All)
	if merr != nil {
		return err
	}
	isLayer := func(d ocispec.Descriptor) bool { return images.IsLayerType(d.MediaType) }
	other := slices.IndexFunc(m.Layers, func(d ocispec.Descriptor) bool { return !isLayer(d) })
	switch layers := slices.ContainsFunc(m.Layers, isLayer); {
	case !images.IsConfigType(m.Config.MediaType) && layers:
		return otherType("configuration", m.Config)
	case images.IsConfigType(m.Config.MediaType) && other >= 0 && (some || !layers):
		return otherType("layer", m.Layers[other])
	}
	return err
}

func otherType(what string, d ocispec.Descriptor) error {
	return &imagepin.Error{
		Reason: imagepin.ContentCorrupt, Class: errdefs.ErrFailedPrecondition,
		Message: fmt.Sprintf("the %s %s has the media type %q, which is not that of a %[1]s of a container image", what, d.Digest, imagepin.Bound(d.MediaType, maxTypeText)),
		Hint:    "Push the image again with the media types of the OCI image specification: pulling it again does not help.",
	}
}

// maxTypeText is the maximum of a media type in an error, in bytes.
const maxTypeText = 128
