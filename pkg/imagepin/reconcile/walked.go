package reconcile

import (
	"bytes"
	"context"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// maxDocument is the largest blob that is read without the content store, in bytes. Manifests and configurations are smaller.
const maxDocument = 1 << 20

// walked is the content store with what an inventory has found in it, for which it asks the store no more: with imagepin serve, each
// question is a call. Nothing may remove content meanwhile.
type walked struct {
	content.Store
	have *health.Inventory
}

// Info implements content.InfoProvider. For a blob of the inventory, it returns the size only.
func (w walked) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	if b, ok := w.have.Blob(d); ok {
		return content.Info{Digest: d, Size: b.Size}, nil
	}
	return w.Store.Info(ctx, d)
}

// ReaderAt implements content.Provider.
func (w walked) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	if b, ok := w.have.Blob(desc.Digest); ok && b.Size <= maxDocument {
		if text, ok := blobs.ReadFile(w.Store, desc.Digest, b.Size); ok {
			return document{bytes.NewReader(text)}, nil
		}
	}
	return w.Store.ReaderAt(ctx, desc)
}

// document is a blob in memory.
type document struct{ *bytes.Reader }

// Close implements io.Closer.
func (document) Close() error { return nil }
