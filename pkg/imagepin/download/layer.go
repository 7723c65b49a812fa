package download

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/klauspost/readahead"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// aheadBuffers and aheadSize are the number and the size, in bytes, of the buffers of a layer with decompressed data.
	aheadBuffers = 4
	aheadSize    = 512 << 10
)

var aheadPool = sync.Pool{New: func() any {
	buffers := make([][]byte, aheadBuffers)
	for i := range buffers {
		buffers[i] = make([]byte, aheadSize)
	}
	return &buffers
}}

// layer is the tar archive of a layer.
type layer struct {
	io.Reader
	ahead      io.Closer // nil if the archive is not decompressed ahead of its reader
	buffers    *[][]byte
	processors []diff.StreamProcessor
}

// decompress returns the tar archive in r, which has a media type, see [byContent]. It uses containerd's stream processors,
// which also decrypt. If ahead is set, it decompresses ahead of the reader, in a goroutine.
func decompress(ctx context.Context, mediaType string, r io.Reader, config diff.ApplyConfig, ahead bool) (_ *layer, err error) {
	l := &layer{}
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	if r, mediaType, err = detect(mediaType, r); err != nil {
		return nil, err
	}
	p, ctx := diff.NewProcessorChain(mediaType, r), withDecompressor(ctx)
	for len(l.processors) == 0 || p.MediaType() != ocispec.MediaTypeImageLayer {
		if p, err = diff.GetProcessor(ctx, p, config.ProcessorPayloads); err != nil {
			return nil, fmt.Errorf("failed to get stream processor for %s: %w", mediaType, err)
		}
		l.processors = append(l.processors, p)
	}
	if l.Reader = p; !ahead {
		return l, nil
	}
	l.buffers = aheadPool.Get().(*[][]byte)
	reader, err := readahead.NewReaderBuffer(p, *l.buffers)
	l.Reader, l.ahead = reader, reader
	return l, err
}

// Close ends the decompression. As in core/diff/apply, the other processors end with the last one, or with the context.
func (l *layer) Close() error {
	var all []error
	if l.ahead != nil {
		all = append(all, l.ahead.Close())
		aheadPool.Put(l.buffers)
		l.ahead, l.buffers = nil, nil
	}
	if last := len(l.processors) - 1; last >= 0 {
		all = append(all, l.processors[last].Close())
	}
	return errors.Join(all...)
}

// Err returns the error of a stream processor whose output has ended without one.
func (l *layer) Err() error {
	for _, p := range l.processors {
		if e, ok := p.(interface{ Err() error }); ok {
			if err := e.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// provider provides the archive of a layer as if it was a blob. The applier reads it once, from beginning to end, with
// content.NewReader, which uses Reader.
type provider struct{ *layer }

// ReaderAt implements content.Provider.
func (p provider) ReaderAt(context.Context, ocispec.Descriptor) (content.ReaderAt, error) {
	return archive{p.layer}, nil
}

type archive struct{ layer *layer }

// Reader returns the whole archive.
func (a archive) Reader() io.Reader { return a.layer.Reader }

// ReadAt implements io.ReaderAt.
func (a archive) ReadAt([]byte, int64) (int, error) {
	return 0, errors.New("an archive is read from its beginning to its end")
}

// Size implements content.ReaderAt. The size is not known.
func (a archive) Size() int64 { return -1 }

// Close implements io.Closer. The layer is closed by [Applier].
func (a archive) Close() error { return nil }
