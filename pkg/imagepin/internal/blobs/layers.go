package blobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// maxMetadata limits manifests and configurations that are read, in bytes. containerd's limit is the same.
const maxMetadata = 8 << 20

// Layers are the layers of an image, lowest first. All slices have the same length.
type Layers struct {
	Blobs             []ocispec.Descriptor
	DiffIDs, ChainIDs []digest.Digest
}

// LayersOf reads the layers of an entry's image from its manifest and its configuration. It fails with ErrNotFound if one of these is
// not on the node, with a [Damage], and with ErrFailedPrecondition if they have no layers, or others than the entry.
func LayersOf(ctx context.Context, cs content.Provider, e imagepin.Entry) (l Layers, _ error) {
	var manifest ocispec.Manifest
	if err := readJSON(ctx, cs, e.Manifest, &manifest); err != nil {
		return l, fmt.Errorf("manifest: %w", err)
	}
	var config ocispec.Image
	if err := readJSON(ctx, cs, e.ImageID, &config); err != nil {
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

func readJSON(ctx context.Context, cs content.Provider, d digest.Digest, v any) error {
	blob, err := cs.ReaderAt(ctx, ocispec.Descriptor{Digest: d})
	if err != nil {
		return err
	}
	defer blob.Close()
	if blob.Size() > maxMetadata {
		return fmt.Errorf("%s has %d bytes: %w", d, blob.Size(), errdefs.ErrInvalidArgument)
	}
	b := make([]byte, blob.Size())
	if _, err := io.ReadFull(content.NewReader(blob), b); err != nil {
		return err
	}
	if d.Algorithm().FromBytes(b) != d {
		return &Damage{Digest: d, Problem: "does not match its digest"}
	}
	return json.Unmarshal(b, v)
}
