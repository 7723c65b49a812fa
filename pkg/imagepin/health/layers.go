package health

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
	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// maxMetadata limits manifests and configurations that are read, in bytes. containerd's limit is the same.
const maxMetadata = 8 << 20

// layers are the layers of an image, lowest first.
type layers struct {
	blobs   []ocispec.Descriptor
	diffIDs []digest.Digest
	chain   []digest.Digest
}

// layersOf reads the layers of an entry's image from its manifest and its configuration.
func layersOf(ctx context.Context, cs content.Provider, e imagepin.Entry) (l layers, _ error) {
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
	l = layers{blobs: manifest.Layers, diffIDs: config.RootFS.DiffIDs}
	l.chain = identity.ChainIDs(append([]digest.Digest(nil), l.diffIDs...))
	if len(l.blobs) != len(l.diffIDs) || len(l.chain) == 0 || l.chain[len(l.chain)-1] != e.ChainID {
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
		return &blobs.Damage{Digest: d, Problem: "does not match its digest"}
	}
	return json.Unmarshal(b, v)
}

// read calls apply with the tar archive of a layer, and compares all of it with its diff ID. rate is called with the number of
// bytes that are read next.
func (l layers) read(ctx context.Context, cs content.Provider, n int, rate func(int64) error, apply func(io.Reader) error) error {
	desc := l.blobs[n]
	blob, err := cs.ReaderAt(ctx, desc)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("layer %s is not on the node", desc.Digest)
	}
	if err != nil {
		return fmt.Errorf("layer %s: %w", desc.Digest, err)
	}
	defer blob.Close()
	archive, err := download.Archive(ctx, desc.MediaType, limited{content.NewReader(blob), rate})
	if err != nil {
		return fmt.Errorf("layer %s cannot be unpacked: %w", desc.Digest, err)
	}
	defer archive.Close()
	digester := l.diffIDs[n].Algorithm().Digester()
	r := io.TeeReader(archive, digester.Hash())
	if err = apply(r); err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err != nil {
		return fmt.Errorf("layer %s cannot be unpacked: %w", desc.Digest, err)
	}
	if got := digester.Digest(); got != l.diffIDs[n] {
		return fmt.Errorf("layer %s is damaged: its archive is %s instead of %s", desc.Digest, got, l.diffIDs[n])
	}
	return nil
}

// limited is a reader that calls rate before it reads.
type limited struct {
	io.Reader
	rate func(int64) error
}

// Read implements io.Reader.
func (r limited) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.rate != nil && n > 0 {
		if err := r.rate(int64(n)); err != nil {
			return 0, err
		}
	}
	return n, err
}
