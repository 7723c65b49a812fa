package health

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// layers are the layers of an image, lowest first.
type layers struct{ blobs.Layers }

// read calls apply with the tar archive of a layer, and compares all of it with its diff ID. rate is called with the number of
// bytes that are read next.
func (l layers) read(ctx context.Context, cs content.Provider, n int, rate func(int64) error, apply func(io.Reader) error) error {
	desc := l.Blobs[n]
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
	digester := l.DiffIDs[n].Algorithm().Digester()
	r := io.TeeReader(archive, digester.Hash())
	if err = apply(r); err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err != nil {
		return fmt.Errorf("layer %s cannot be unpacked: %w", desc.Digest, err)
	}
	if got := digester.Digest(); got != l.DiffIDs[n] {
		return fmt.Errorf("layer %s is damaged: its archive is %s instead of %s", desc.Digest, got, l.DiffIDs[n])
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
