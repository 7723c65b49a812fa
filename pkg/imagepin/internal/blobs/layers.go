package blobs

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Layers are the layers of an image, lowest first. All slices have the same length.
type Layers struct {
	Blobs             []ocispec.Descriptor
	DiffIDs, ChainIDs []digest.Digest
}

// LayersOf reads the layers of an entry's image from its manifest and its configuration. It fails with ErrNotFound if one of these is
// not on the node, with a [Damage], and with ErrFailedPrecondition if they have no layers, or others than the entry.
func LayersOf(ctx context.Context, cs content.Provider, e imagepin.Entry) (l Layers, _ error) {
	manifest, err := Manifest(ctx, cs, e.Manifest)
	if err != nil {
		return l, fmt.Errorf("manifest: %w", err)
	}
	var config ocispec.Image
	if b, err := Read(ctx, cs, ocispec.Descriptor{Digest: e.ImageID}); err != nil {
		return l, fmt.Errorf("configuration: %w", err)
	} else if err := json.Unmarshal(b, &config); err != nil {
		return l, fmt.Errorf("configuration: %w", err)
	}
	for _, d := range config.RootFS.DiffIDs {
		if err := d.Validate(); err != nil {
			return l, fmt.Errorf("configuration %s: diff ID %q: %w", e.ImageID, d, err)
		}
	}
	l = Layers{Blobs: manifest.Layers, DiffIDs: config.RootFS.DiffIDs}
	l.ChainIDs = identity.ChainIDs(append([]digest.Digest(nil), l.DiffIDs...))
	if len(l.Blobs) != len(l.DiffIDs) || len(l.ChainIDs) == 0 || l.ChainIDs[len(l.ChainIDs)-1] != e.ChainID {
		return l, fmt.Errorf("manifest %s and configuration %s have other layers than snapshot %s: %w", e.Manifest, e.ImageID, e.ChainID, errdefs.ErrFailedPrecondition)
	}
	return l, nil
}
