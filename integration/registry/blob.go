package registry

import (
	"context"
	"io"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// blob is the content of a blob. Its parts can be parts of other blobs too.
type blob [][]byte

func (b blob) size() (n int64) {
	for _, part := range b {
		n += int64(len(part))
	}
	return n
}

// ReadAt implements [io.ReaderAt].
func (b blob) ReadAt(into []byte, off int64) (n int, _ error) {
	for _, part := range b {
		if off >= int64(len(part)) {
			off -= int64(len(part))
			continue
		}
		n += copy(into[n:], part[off:])
		if n == len(into) {
			return n, nil
		}
		off = 0
	}
	return n, io.EOF
}

// blobReader reads a blob. The store needs ReadAt for ranges.
type blobReader struct {
	*io.SectionReader
	blob blob
}

func newBlobReader(b blob) *blobReader {
	return &blobReader{io.NewSectionReader(b, 0, b.size()), b}
}

func (*blobReader) Close() error { return nil }

// WriteTo implements [io.WriterTo]. It writes all parts, whatever was read before, without a copy.
func (r *blobReader) WriteTo(w io.Writer) (written int64, _ error) {
	for _, part := range r.blob {
		n, err := w.Write(part)
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// PutBlob stores a blob in a repository. Its content is the parts, which the registry does not copy: blobs that have
// a large part in common need its memory once. The caller does not change them, and gives the right digest.
func (r *Registry) PutBlob(repo string, digest v1.Hash, parts ...[]byte) {
	r.blobs.put(repo, digest, parts)
}

// Get implements [registry.BlobHandler].
func (b *blobs) Get(_ context.Context, repo string, h v1.Hash) (io.ReadCloser, error) {
	c, ok := b.get(repo, h)
	if !ok {
		return nil, registry.ErrNotFound
	}
	return newBlobReader(c), nil
}
