package bundle

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

const (
	// keptBytes is the maximum size, in bytes, of the indexes, manifests and configurations that an open bundle keeps in memory. It
	// reads the others again from the file.
	keptBytes = 4 << 20
	// cachedFrames is the number of frames of a compressed bundle that are kept after one was read: indexes, manifests and
	// configurations of an image are at three places.
	cachedFrames = 3
)

// metadata keeps a part of the metadata of a bundle, and reads the rest from its file. It is safe for concurrent use after Open.
type metadata struct {
	buffer  []byte  // of the entry that Open reads
	starts  []int64 // of the frames of a compressed bundle, up to the last one with metadata
	offsets []int64 // of the indexes, manifests and configurations in the archive

	mu      sync.Mutex
	kept    map[uint32][]byte // by the number of the blob
	size    int               // of kept
	frames  []cachedFrame
	decoder *zstd.Decoder
}

type cachedFrame struct {
	n    int64
	data []byte
}

// keep keeps a blob, if there is room.
func (m *metadata) keep(n uint32, data []byte) {
	const inMap = 128 // bytes
	if m.size+len(data)+inMap > keptBytes {
		return
	}
	if m.kept == nil {
		m.kept = make(map[uint32][]byte)
	}
	m.size += len(data) + inMap
	m.kept[n] = slices.Clone(data)
}

func (m *metadata) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.decoder != nil {
		m.decoder.Close()
	}
	m.decoder, m.frames = nil, nil
}

// Blob returns an index, a manifest or a configuration, byte for byte. The caller must not change it. It fails with ErrNotFound if
// the bundle does not have it, and with [imagepin.InvalidBundle] (ErrInvalidArgument) if the file has changed.
func (b *Bundle) Blob(d digest.Digest) ([]byte, error) {
	n, of, ok := b.closure.find(d)
	if !ok || of.flags&isMetadata == 0 {
		return nil, fmt.Errorf("the bundle has no metadata %s: %w", d, errdefs.ErrNotFound)
	}
	b.metadata.mu.Lock()
	defer b.metadata.mu.Unlock()
	if data, ok := b.metadata.kept[n]; ok {
		return data, nil
	}
	data, err := b.readAt(b.metadata.offsets[of.place], of.size)
	if err == nil && d.Algorithm().FromBytes(data) != d {
		err = errors.New("its content does not match its digest")
	}
	if err != nil {
		return nil, invalid(b.path, &entryError{blobName(d), err})
	}
	return data, nil
}

// readAt reads a part of the archive. The caller holds the mutex of the metadata.
func (b *Bundle) readAt(at, size int64) ([]byte, error) {
	if len(b.metadata.starts) == 0 {
		return readAll(io.NewSectionReader(b.file, at, size), size)
	}
	data := make([]byte, 0, size)
	for int64(len(data)) < size {
		frame, err := b.frame(at / FrameSize)
		if err != nil {
			return nil, err
		}
		part := frame[min(at%FrameSize, int64(len(frame))):]
		part = part[:min(int64(len(part)), size-int64(len(data)))]
		if len(part) == 0 {
			return nil, io.ErrUnexpectedEOF
		}
		data, at = append(data, part...), at+int64(len(part))
	}
	return data, nil
}

// frame returns the content of a frame of a compressed bundle.
func (b *Bundle) frame(n int64) ([]byte, error) {
	m := &b.metadata
	if at := slices.IndexFunc(m.frames, func(f cachedFrame) bool { return f.n == n }); at >= 0 {
		f := m.frames[at]
		m.frames = append(slices.Delete(m.frames, at, at+1), f) // the last one was used last
		return f.data, nil
	}
	if n >= int64(len(m.starts)) {
		return nil, io.ErrUnexpectedEOF
	}
	if m.decoder == nil {
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(FrameSize), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		m.decoder = decoder
	}
	start := m.starts[n]
	if err := m.decoder.Reset(io.NewSectionReader(b.file, start, b.info.Size()-start)); err != nil {
		return nil, err
	}
	f := cachedFrame{n: n}
	if len(m.frames) == cachedFrames { // its memory is used again
		f.data = m.frames[0].data
		m.frames = slices.Delete(m.frames, 0, 1)
	}
	f.data = slices.Grow(f.data[:0], FrameSize)[:min(FrameSize, b.size-n*FrameSize)]
	if _, err := io.ReadFull(m.decoder, f.data); err != nil {
		return nil, err
	}
	m.frames = append(m.frames, f)
	return f.data, nil
}
