package apply

import (
	"bytes"
	"context"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// bundled reads indexes, manifests and configurations from a bundle, and otherwise from the content store.
type bundled struct {
	content.Store
	bundle Bundle
}

var _ content.InfoReaderProvider = bundled{}

// Info implements content.InfoProvider.
func (b bundled) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	text, err := b.bundle.Blob(d)
	switch {
	case err == nil:
		return content.Info{Digest: d, Size: int64(len(text))}, nil
	case !errdefs.IsNotFound(err):
		return content.Info{}, err
	}
	return b.Store.Info(ctx, d)
}

// ReaderAt implements content.Provider.
func (b bundled) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	text, err := b.bundle.Blob(desc.Digest)
	switch {
	case err == nil:
		return readerAt{bytes.NewReader(text)}, nil
	case !errdefs.IsNotFound(err):
		return nil, err
	}
	return b.Store.ReaderAt(ctx, desc)
}

type readerAt struct{ *bytes.Reader }

// Close implements io.Closer.
func (readerAt) Close() error { return nil }
