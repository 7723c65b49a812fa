package resolve

import (
	"context"
	"io"
	"slices"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ranges are the ranges of a blob that are requested and not read yet.
type ranges struct {
	ctx    context.Context
	cancel context.CancelFunc
	desc   ocispec.Descriptor
	blobs  sessionBlobs
	host   int

	first   int64   // the first byte of the first range
	next    int64   // the first byte that is not requested yet
	parts   []*part // in their order
	arrived bool    // a range is read
	running sync.WaitGroup
	chunk   int64    // size of a buffer
	buffers [][]byte // that no range uses
}

func newRanges(ctx context.Context, desc ocispec.Descriptor, blobs sessionBlobs, host int, first, chunk int64) *ranges {
	r := &ranges{desc: desc, blobs: blobs, host: host, first: first, next: first, chunk: chunk}
	r.ctx, r.cancel = context.WithCancel(ctx)
	return r
}

// start requests the next range, up to end. once is false if the range may be requested again after an interruption.
func (r *ranges) start(end int64, once bool) {
	var buffer []byte
	if last := len(r.buffers) - 1; last >= 0 {
		buffer, r.buffers = r.buffers[last], r.buffers[:last]
	} else {
		buffer = make([]byte, r.chunk)
	}
	p := newPart(r.next, end, buffer, &attempt{size: r.desc.Size, end: end, once: once})
	r.running.Go(func() {
		p.fetch(r.ctx, func(ctx context.Context) (io.ReadCloser, error) {
			return r.blobs.openRange(ctx, r.desc, r.host, p.first)
		})
	})
	r.parts, r.next = append(r.parts, p), end
}

// read reads from the first range. failed is the range if it has failed. After the last one, read fails with io.EOF.
func (r *ranges) read(b []byte) (n int, failed *part, _ error) {
	if len(r.parts) == 0 {
		return 0, nil, io.EOF
	}
	p := r.parts[0]
	n, err := p.Read(b)
	switch {
	case err == nil:
	case r.ctx.Err() != nil:
		return n, nil, r.ctx.Err()
	case err == io.EOF:
		r.parts, r.arrived = r.parts[1:], true
		r.buffers = append(r.buffers, p.buffer)
	default:
		return n, p, nil
	}
	return n, nil, nil
}

// proven reports whether the first range has arrived, and all others are arriving. offset is that of the reader.
func (r *ranges) proven(offset int64) bool {
	if !r.arrived && (offset < r.first || !r.parts[0].complete()) {
		return false
	}
	return !slices.ContainsFunc(r.parts, func(p *part) bool { return !p.answered() })
}

// unread returns the number of bytes that are received and not read yet.
func (r *ranges) unread() (n int64) {
	for _, p := range r.parts {
		n += p.available()
	}
	return n
}

// failed returns a range that has failed, or nil.
func (r *ranges) failed() *part {
	for _, p := range r.parts {
		if p.failed() != nil {
			return p
		}
	}
	return nil
}

// stop ends all requests, and waits for them.
func (r *ranges) stop() {
	r.cancel()
	for _, p := range r.parts {
		p.finish(context.Canceled)
	}
	r.running.Wait()
	r.parts, r.buffers = nil, nil
}
