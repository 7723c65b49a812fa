package download

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// reader reads a layer from the window of its download, and what the window does not have from the content store.
type reader struct {
	ctx      context.Context
	cancel   context.CancelFunc
	content  content.Provider
	desc     ocispec.Descriptor
	download *download // nil if the layer is in the content store
	attached bool      // the window of the download is this reader's

	dropped bool // the window does not have the rest
	offset  int64
	stored  io.Reader // the rest; nil until the content store is needed

	mu     sync.Mutex // Close does not wait for a stream processor that reads in a goroutine
	closed bool
	blob   content.ReaderAt // nil until the content store is needed
}

func newReader(ctx context.Context, cs content.Provider, desc ocispec.Descriptor, l *download) *reader {
	r := &reader{content: cs, desc: desc, download: l}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.attached = l != nil && l.window.attach()
	r.dropped = !r.attached
	return r
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (n int, err error) {
	defer func() { r.offset += int64(n) }()
	if !r.dropped {
		if r.offset == r.desc.Size {
			return 0, io.EOF
		}
		n, err = r.download.window.read(r.ctx, p[:min(int64(len(p)), r.desc.Size-r.offset)])
		if !errors.Is(err, errDropped) {
			return n, err
		}
		r.dropped = true
	}
	if r.stored == nil {
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	return r.stored.Read(p)
}

// open opens the layer in the content store, where it is after its download.
func (r *reader) open() error {
	if r.download != nil {
		if err := r.download.wait(r.ctx); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return os.ErrClosed
	}
	blob, err := r.content.ReaderAt(r.ctx, r.desc)
	if err != nil {
		return err
	}
	r.blob = blob
	if r.stored = content.NewReader(blob); r.offset > 0 {
		r.stored = io.NewSectionReader(blob, r.offset, blob.Size()-r.offset)
	}
	return nil
}

// Close closes the reader, and ends a Read that waits. The download does not wait for it any longer.
func (r *reader) Close() error {
	r.cancel()
	if r.attached {
		r.download.window.drop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.blob == nil {
		return nil
	}
	return r.blob.Close()
}
