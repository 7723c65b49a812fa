package download

import (
	"context"
	"io"

	"github.com/containerd/containerd/v2/core/diff"
)

// Archive returns the tar archive of the layer in r, decompressed as [Applier] does. Its reader fails at the end if a stream
// processor has failed. Close ends the decompression, and does not close r.
func Archive(ctx context.Context, mediaType string, r io.Reader) (io.ReadCloser, error) {
	l, err := decompress(ctx, mediaType, r, diff.ApplyConfig{}, false)
	if err != nil {
		return nil, err
	}
	return checked{l}, nil
}

// checked is a layer whose end is an error if a stream processor has failed.
type checked struct{ *layer }

// Read implements io.Reader.
func (c checked) Read(p []byte) (int, error) {
	n, err := c.layer.Read(p)
	if err == io.EOF {
		if failed := c.Err(); failed != nil {
			err = failed
		}
	}
	return n, err
}
