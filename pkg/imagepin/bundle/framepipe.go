package bundle

import (
	"context"
	"fmt"
	"hash"
	"os"
	"runtime"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// frame is a part of the archive on its way to the file.
type frame struct {
	raw  []byte // of the archive
	out  []byte // of the file
	done chan struct{}
}

// framesInFlight bounds the memory of a framePipe: each frame has two buffers of FrameSize.
const framesInFlight = 6

// framePipe cuts an archive in frames, compresses several frames at a time, and writes them to a file in their order.
type framePipe struct {
	ctx   context.Context
	free  chan *frame
	jobs  chan *frame // to compress
	order chan *frame // to write
	now   *frame

	complete bool // set before order is closed
}

// newFramePipe starts the goroutines of a framePipe in group. The first frame starts at the end of the file. sum is the checksum
// of what is in the file. If it is nil, the file is not compressed.
func newFramePipe(ctx context.Context, group *errgroup.Group, file *os.File, sum hash.Hash32) (*framePipe, error) {
	p := &framePipe{
		ctx: ctx, free: make(chan *frame, framesInFlight),
		jobs: make(chan *frame, framesInFlight), order: make(chan *frame, framesInFlight),
	}
	for range framesInFlight {
		p.free <- &frame{raw: make([]byte, 0, FrameSize)}
	}
	encode := func(f *frame) { f.out = f.raw }
	if sum != nil {
		// The encoder is only used for whole frames, so equal frames have equal bytes.
		encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithSingleSegment(true),
			zstd.WithWindowSize(FrameSize), zstd.WithEncoderCRC(true), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
			zstd.WithLowerEncoderMem(true))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
		encode = func(f *frame) { f.out = encoder.EncodeAll(f.raw, f.out[:0]) }
	}
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error {
			for f := range p.jobs {
				encode(f)
				close(f.done)
			}
			return nil
		})
	}
	group.Go(func() error {
		for f := range p.order { // also after a failure, so that the next write continues after it
			<-f.done
			if _, err := file.Write(f.out); err != nil {
				return err
			}
			if sum != nil {
				_, _ = sum.Write(f.out) // a hash accepts all writes
			}
			f.raw = f.raw[:0]
			p.free <- f
		}
		if sum == nil || !p.complete {
			return nil
		}
		_, err := file.Write(checksumFrame(sum.Sum32()))
		return err
	})
	return p, nil
}

// Write implements io.Writer.
func (p *framePipe) Write(data []byte) (int, error) {
	written := 0
	for len(data) > 0 {
		if p.now == nil {
			select {
			case p.now = <-p.free:
			case <-p.ctx.Done():
				return written, context.Cause(p.ctx)
			}
		}
		n := min(FrameSize-len(p.now.raw), len(data))
		p.now.raw = append(p.now.raw, data[:n]...)
		data, written = data[n:], written+n
		if len(p.now.raw) == FrameSize {
			p.send()
		}
	}
	return written, nil
}

func (p *framePipe) send() {
	p.now.done = make(chan struct{})
	p.jobs <- p.now // each frame has room in both channels
	p.order <- p.now
	p.now = nil
}

// flush sends the last frame. The archive is complete.
func (p *framePipe) flush() {
	p.complete = true
	if p.now != nil && len(p.now.raw) > 0 {
		p.send()
	}
}

// stop ends the goroutines after they handled all frames.
func (p *framePipe) stop() {
	close(p.jobs)
	close(p.order)
}
