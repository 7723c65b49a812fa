package resolve

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
)

// largeBlobs says when and how the rest of a blob is fetched over several connections.
type largeBlobs struct {
	// size is the minimum number of bytes of a blob, and of its rest.
	size int64
	// skip is the number of bytes before the measurement of one connection starts, because TCP starts slowly.
	skip int64
	// probe and probeTime are the bytes and the time over which one connection is measured, at least. The measurement
	// is repeated until the end of the blob.
	probe     int64
	probeTime time.Duration
	// waiting is the minimum share of the time that is spent waiting for one connection if it is the limit.
	waiting float64
	// enough is the rate, in bytes per second, above which the node does not need more connections.
	enough float64
	// connections is the maximum number of connections for one blob. Each needs memory for one chunk.
	connections int64
	// chunk is the number of bytes in one request.
	chunk int64
	// trial is the number of chunks for each connection in a span that decides whether several are faster, and rounds in
	// other spans. The number of connections changes only between spans. Before a span starts, everything before it is
	// read, so longer ones are faster.
	trial, rounds int64
	// gain is the minimum ratio of the rate of several connections to the rate of one. Otherwise not the connection is
	// the limit but what all connections share.
	gain float64
	// undecided is the share of the time spent waiting below which the reader is the limit of several connections, so
	// that the gain is measured again.
	undecided float64
}

// defaultLargeBlobs are the values on nodes. Unpacking is slower than enough: most of its time is spent inflating.
var defaultLargeBlobs = largeBlobs{
	size: 64 << 20, skip: 8 << 20, probe: 16 << 20, probeTime: 200 * time.Millisecond, waiting: 0.7, enough: 256 << 20,
	connections: 4, chunk: 16 << 20, trial: 2, rounds: 4, gain: 1.3, undecided: 0.5,
}

// bodyOpener opens bodies of a blob.
type bodyOpener interface {
	// open returns the body from an offset. The request waits for a slot of the node's download limit.
	open(ctx context.Context, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error)
	// openIn returns the body from an offset, over a number of connections for which the caller has slots. The context
	// has a [span] if it is more than one.
	openIn(ctx context.Context, desc ocispec.Descriptor, offset, connections int64) (io.ReadCloser, error)
}

// largeBody is the body of a large blob. It begins as one request. If the connection is the limit and the host serves
// ranges, it continues with spans of the blob, each in chunks over several connections. If they are not faster, or fail,
// one request has the rest.
//
// It does not wait for slots of the node's download limit except for its first request: further connections use slots
// that are free, and give them back after each span. So a blob never holds slots while it waits for others. One slot
// remains until the end, or the blob would queue again behind all others after each span.
type largeBody struct {
	ctx     context.Context
	desc    ocispec.Descriptor
	from    bodyOpener
	config  largeBlobs
	slots   slots
	useless *atomic.Bool // several connections are no faster, or fail, for this session
	answer  *answer

	phase  phase
	body   io.ReadCloser // nil if the next one has to be opened
	cancel context.CancelFunc
	offset int64
	ended  bool // everything is read
	closed bool

	meter    waitMeter
	measured int64 // offset at which the measurement starts

	// In the phase inSpans.
	end    int64   // of the span
	before float64 // rate of one connection
	full   bool    // the span is as long as a trial
	faster bool    // decided: several connections are faster
}

// phase is a phase of a [largeBody].
type phase int

const (
	asOne   phase = iota // one request, which is measured
	inSpans              // spans in chunks
	asRest               // one request for the rest, with a slot of the body
)

func newLargeBody(ctx context.Context, desc ocispec.Descriptor, from bodyOpener, c largeBlobs, limiter *semaphore.Weighted, useless *atomic.Bool) (*largeBody, error) {
	b := &largeBody{
		desc: desc, from: from, config: c, slots: slots{limiter: limiter}, useless: useless, answer: &answer{}, measured: c.skip,
	}
	b.ctx = withAnswer(ctx, b.answer)
	if err := b.open(); err != nil {
		return nil, err
	}
	return b, nil
}

// Read implements io.Reader.
func (b *largeBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if b.closed || b.ended {
			return 0, io.EOF
		}
		if b.phase == asOne && b.limited() {
			b.split()
		}
		if b.body == nil {
			if err := b.open(); err != nil {
				return 0, err
			}
		}
		n, err := b.measure(p)
		if b.phase == inSpans {
			err = b.advance(err)
			if n == 0 && err == nil {
				continue
			}
			return n, err
		}
		if err == io.EOF {
			b.finish()
		}
		return n, err
	}
}

// measure reads from the current body.
func (b *largeBody) measure(p []byte) (int, error) {
	start := time.Now()
	n, err := b.body.Read(p)
	now := time.Now()
	if b.offset >= b.measured {
		b.meter.add(n, start, now)
	} else if b.offset+int64(n) >= b.measured {
		b.meter.reset(now)
	}
	b.offset += int64(n)
	return n, err
}

// limited reports whether the connection is the limit, according to a measurement that is complete, and more connections
// are possible.
func (b *largeBody) limited() bool {
	if b.offset < b.measured || b.meter.bytes < b.config.probe || b.meter.elapsed() < b.config.probeTime {
		return false
	}
	m := b.meter
	b.meter.reset(m.now)
	b.before = m.rate()
	return b.answer.ranges && b.desc.Size-b.offset >= b.config.size && m.waiting() > b.config.waiting && b.before < b.config.enough &&
		!b.useless.Load()
}

// split continues in spans, if there are slots for more connections.
func (b *largeBody) split() {
	if b.slots.take(b.config.connections-1) == 0 {
		return
	}
	_ = b.closeBody() // also gives its slot back
	b.phase = inSpans
}

// open opens the body of the current phase.
func (b *largeBody) open() (err error) {
	ctx, cancel := context.WithCancel(b.ctx)
	switch b.phase {
	case asOne:
		b.body, err = b.from.open(ctx, b.desc, b.offset)
	case inSpans:
		b.body, err = b.openSpan(ctx)
	case asRest:
		b.body, err = b.from.openIn(ctx, b.desc, b.offset, 1)
	}
	if err != nil {
		cancel()
		b.body = nil
		return err
	}
	b.cancel = cancel
	return nil
}

// openSpan opens the next span, with a connection for each slot that it gets.
func (b *largeBody) openSpan(ctx context.Context) (io.ReadCloser, error) {
	b.slots.keep(1)
	rest := b.desc.Size - b.offset
	n := b.slots.take(min(b.config.connections, (rest+b.config.chunk-1)/b.config.chunk))
	rounds := b.config.trial
	if b.faster {
		rounds = b.config.rounds
	}
	length := n * b.config.chunk * rounds
	b.full = rest >= length
	if rest < length+b.config.chunk {
		length = rest
	}
	b.end = b.offset + length
	b.measured = b.offset + length/2
	chunk := b.config.chunk
	if n == 1 {
		chunk = length
	}
	log.G(ctx).WithFields(log.Fields{"offset": b.offset, "length": length, "connections": n}).Debug("fetching a part of a large blob")
	desc := b.desc
	desc.Size = b.end
	return b.from.openIn(withSpan(ctx, span{end: b.end, chunk: chunk}), desc, b.offset, n)
}

// advance continues after a read in a span that returned err.
func (b *largeBody) advance(err error) error {
	if b.offset < b.end {
		if err == nil || b.ctx.Err() != nil {
			return b.ctx.Err()
		}
		log.G(b.ctx).WithError(RedactError(err)).Info("fetching the rest of a large blob over one connection")
		b.rest()
		return nil
	}
	if b.slots.held > 1 && b.full && !b.faster {
		b.faster = b.meter.rate() >= b.config.gain*b.before
		if !b.faster && b.meter.waiting() >= b.config.undecided {
			log.G(b.ctx).Debug("several connections are not faster than one")
			b.rest()
		}
	}
	if b.offset == b.desc.Size {
		b.finish()
		return nil
	}
	_ = b.closeBody()
	return nil
}

// rest continues with one connection, and the session's other blobs too.
func (b *largeBody) rest() {
	_ = b.closeBody()
	b.slots.keep(1)
	b.useless.Store(true)
	b.phase = asRest
}

// finish gives back all slots at the end of the blob.
func (b *largeBody) finish() {
	b.ended = true
	_ = b.closeBody()
	b.slots.keep(0)
}

// closeBody ends the requests of the current body.
func (b *largeBody) closeBody() error {
	if b.body == nil {
		return nil
	}
	b.cancel() // containerd does not end the first chunk's request, and waits for it
	err := b.body.Close()
	b.body = nil
	return err
}

// Seek implements io.Seeker, which is used to resume a download. The next Read starts again with one request.
func (b *largeBody) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += b.offset
	case io.SeekEnd:
		offset += b.desc.Size
	default:
		return 0, fmt.Errorf("seek: invalid whence %d: %w", whence, errdefs.ErrInvalidArgument)
	}
	if b.closed {
		return 0, fmt.Errorf("seek: closed: %w", errdefs.ErrUnavailable)
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek: negative offset: %w", errdefs.ErrInvalidArgument)
	}
	if offset != b.offset {
		b.finish()
		b.ended, b.faster, b.phase = false, false, asOne
		b.offset, b.measured = offset, offset+b.config.skip
	}
	return offset, nil
}

// Close implements io.Closer.
func (b *largeBody) Close() error {
	b.closed = true
	err := b.closeBody()
	b.slots.keep(0)
	return err
}

// slots are the slots of the node's download limit that a body holds.
type slots struct {
	limiter *semaphore.Weighted
	held    int64
}

// take takes free slots until the body holds n, and returns how many it holds.
func (s *slots) take(n int64) int64 {
	for s.held < n && s.limiter.TryAcquire(1) {
		s.held++
	}
	return s.held
}

// keep gives back slots until the body holds at most n.
func (s *slots) keep(n int64) {
	if extra := s.held - n; extra > 0 {
		s.limiter.Release(extra)
		s.held = n
	}
}
