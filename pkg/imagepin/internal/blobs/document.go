package blobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// MaxDocument is the maximum size of an index, a manifest or a configuration that is read, in bytes. containerd has the same
	// limit for a manifest.
	MaxDocument = 8 << 20
	// MaxNesting is the maximum depth of nested indexes.
	MaxNesting = 8
	// MaxWalked is the maximum number of indexes and manifests that a search below one root opens.
	MaxWalked = 64
	// AttestationAnnotation marks an attestation manifest, which BuildKit adds to the index of an image. It is not an image.
	AttestationAnnotation = "vnd.docker.reference.type"
)

// Read reads an index, a manifest or a configuration. It fails with ErrNotFound if it is not there, with a [Damage] if it does not
// match its digest, and with ErrInvalidArgument if it is larger than [MaxDocument].
func Read(ctx context.Context, cs content.Provider, desc ocispec.Descriptor) ([]byte, error) {
	blob, err := cs.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	if blob.Size() > MaxDocument {
		return nil, fmt.Errorf("%s has %d bytes: %w", desc.Digest, blob.Size(), errdefs.ErrInvalidArgument)
	}
	b := make([]byte, blob.Size())
	if _, err := io.ReadFull(content.NewReader(blob), b); err != nil {
		return nil, err
	}
	if desc.Digest.Algorithm().FromBytes(b) != desc.Digest {
		return nil, &Damage{Digest: desc.Digest, Problem: "does not match its digest"}
	}
	return b, nil
}

// Manifest reads a manifest as [Read] does. Docker's manifests have the same structure as those of OCI.
func Manifest(ctx context.Context, cs content.Provider, d digest.Digest) (m ocispec.Manifest, _ error) {
	b, err := Read(ctx, cs, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d})
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(b, &m)
}
