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
	// chunk is the number of bytes in one range. The only connection has ranges of several chunks.
	chunk, alone int64
	// trial is the number of chunks for each connection after which it is decided whether several are faster. The first
	// one is not measured.
	trial int64
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
	connections: 4, chunk: 16 << 20, alone: 4, trial: 2, gain: 1.3, undecided: 0.5,
}

// largeBody is the body of a large blob. It begins with one connection, the main one. If that is the limit and the host
// serves ranges, it requests ranges of the rest over further connections. When the first range has arrived and the others
// are arriving, they replace the main connection.
//
// If a range fails before that, the main connection continues. If one fails later, or several connections are not faster,
// one connection has the rest. How it is opened does not depend on what failed, see [mainBody].
//
// It does not wait for slots of the node's download limit except for its first request: further connections use slots
// that are free, and give them back after each range. So a blob never holds slots while it waits for others. One slot
// remains until the end, or the blob would queue again behind all others after each range.
type largeBody struct {
	ctx     context.Context
	cancel  context.CancelFunc
	desc    ocispec.Descriptor
	blobs   sessionBlobs
	config  largeBlobs
	slots   slots
	useless *atomic.Bool // several connections are no faster, or fail, for this session

	phase  phase
	main   *mainBody
	ranges *ranges // nil before the first one
	served answer  // of the main connection, when the ranges began
	offset int64
	used   bool // ranges are read
	ended  bool // everything is read
	closed bool

	meter    waitMeter
	measured int64   // offset at which the measurement starts
	before   float64 // rate of one connection
	trial    trial
}

// phase is a phase of a [largeBody].
type phase int

const (
	asOne    phase = iota // the main connection is measured
	proving               // the first ranges are requested, and the main connection is open
	inRanges              // ranges have replaced the main connection
	asRest                // the main connection has the rest
)

// trial is a part of the blob over which the rate of several connections is measured.
type trial struct {
	// end is the offset at which the trial is decided. No range is requested after it before, so that none is wasted. Zero
	// means that there is no trial.
	end int64
	// connections is their number at the start.
	connections int64
}

func newLargeBody(ctx context.Context, desc ocispec.Descriptor, blobs sessionBlobs, c largeBlobs, limiter *semaphore.Weighted, useless *atomic.Bool) *largeBody {
	b := &largeBody{desc: desc, blobs: blobs, config: c, slots: slots{limiter: limiter}, useless: useless, measured: c.skip}
	b.ctx, b.cancel = context.WithCancel(ctx)
	b.main = newMainBody(b.ctx, desc, blobs)
	return b
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
		b.advance()
		n, err := b.measure(p)
		if n == 0 && err == nil {
			continue
		}
		if err == io.EOF && b.offset == b.desc.Size {
			b.ended = true
			b.stop()
		}
		return n, err
	}
}

// advance changes the phase and requests ranges, as the state of the connections allows.
func (b *largeBody) advance() {
	switch b.phase {
	case asOne:
		if b.limited() && b.slots.take(b.config.connections-1) > 0 {
			b.split()
			b.request()
		}
	case proving:
		b.request() // before the main connection ends, so that it is there if one of these fails
		if failed := b.ranges.failed(); failed != nil {
			b.giveUp(failed)
		} else if b.ranges.proven(b.offset) {
			b.main.stop() // also gives its slot back
			b.phase = inRanges
			b.slots.take(b.config.connections)
			b.try()
		}
	case inRanges:
		if b.trial.end > 0 && b.offset == b.trial.end {
			b.decide()
		}
	}
	if b.phase == inRanges {
		b.request()
	}
}

// limited reports whether the main connection is the limit, according to a measurement that is complete, and more
// connections are possible.
func (b *largeBody) limited() bool {
	if b.offset < b.measured || b.meter.bytes < b.config.probe || b.meter.elapsed() < b.config.probeTime {
		return false
	}
	m := b.meter
	b.meter.reset(m.now)
	b.before = m.rate()
	served, ok := b.main.at.served()
	return ok && served.ranges && b.desc.Size-b.offset >= b.config.size && m.waiting() > b.config.waiting && b.before < b.config.enough &&
		!b.useless.Load() && b.blobs.mayRange(b.desc, served)
}

// split begins with ranges. Until they have replaced it, the main connection reads the bytes before the first one.
func (b *largeBody) split() {
	b.served, _ = b.main.at.served()
	b.phase, b.trial = proving, trial{}
	b.ranges = newRanges(b.ctx, b.desc, b.blobs, b.served.host, b.offset+b.config.chunk, b.config.chunk)
}

// request requests further ranges, with a connection for each slot that it gets. Before the first one is answered, it
// requests no other.
func (b *largeBody) request() {
	r, end := b.ranges, b.desc.Size
	if b.trial.end > 0 {
		end = b.trial.end
	}
	if b.phase == inRanges && r.next == b.desc.Size {
		b.slots.keep(max(int64(len(r.parts)), 1))
	}
	for r.next < end && r.failed() == nil {
		n, length := int64(len(r.parts)), b.config.chunk
		if b.phase == inRanges {
			b.slots.keep(max(n, 1))
			if b.slots.take(b.config.connections) == 1 {
				length *= b.config.alone
			}
		} else if n > 0 && !r.parts[0].answered() {
			return
		}
		if n >= b.slots.held {
			return
		}
		if b.slots.held < b.trial.connections {
			b.trial.connections = 0 // it is not a trial of that many
		}
		log.G(b.ctx).WithFields(log.Fields{"offset": r.next, "connections": b.slots.held}).Debug("fetching a range of a large blob")
		r.start(min(r.next+length, end), b.phase == proving)
	}
}

// measure reads from the main connection or from a range.
func (b *largeBody) measure(p []byte) (int, error) {
	start := time.Now()
	n, err := b.read(p)
	now := time.Now()
	if b.offset >= b.measured {
		b.meter.add(n, start, now)
	} else if b.offset+int64(n) >= b.measured {
		b.meter.reset(now)
		if b.phase == inRanges {
			b.meter.bytes = -b.ranges.unread() // were received before
		}
	}
	b.offset += int64(n)
	return n, err
}

// read reads at the offset.
func (b *largeBody) read(p []byte) (int, error) {
	if b.phase == asOne || b.phase == asRest {
		return b.main.Read(p)
	}
	if before := b.ranges.first - b.offset; before > 0 {
		return b.main.Read(p[:min(int64(len(p)), before)])
	}
	n, failed, err := b.ranges.read(p)
	if n > 0 && !b.used {
		b.used = true
		b.blobs.usesRanges(b.desc, b.served)
	}
	if failed != nil {
		b.giveUp(failed)
	}
	return n, err
}

// try begins a trial with the next ranges, if the rest of the blob is long enough.
func (b *largeBody) try() {
	b.trial, b.measured = trial{}, b.desc.Size
	from, span := b.ranges.next, b.slots.held*b.config.chunk
	if end := from + span*b.config.trial; b.slots.held > 1 && end+b.config.chunk <= b.desc.Size {
		b.trial, b.measured = trial{end: end, connections: b.slots.held}, from+span
	}
}

// decide ends a trial.
func (b *largeBody) decide() {
	switch {
	case b.meter.rate() >= b.config.gain*b.before:
		b.trial = trial{}
	case b.trial.connections > 0 && b.meter.waiting() >= b.config.undecided:
		b.giveUp(nil)
	default: // the reader, or the number of connections, was the limit
		b.slots.take(b.config.connections)
		b.try()
	}
}

// giveUp continues with the main connection: because a range has failed, or because several connections are not faster. So
// does the rest of the session. A server that does not serve what it was asked for is not asked for ranges again. Before
// the main connection is replaced, this includes every failure.
func (b *largeBody) giveUp(failed *part) {
	b.ranges.stop()
	if b.ctx.Err() != nil {
		return
	}
	b.useless.Store(true)
	open := b.phase == proving
	b.phase = asRest
	whole := false
	if failed == nil {
		log.G(b.ctx).Debug("several connections are not faster than one")
	} else {
		reason := failed.failed()
		log.G(b.ctx).WithError(RedactError(reason)).WithField("server", b.served.origin).Info("fetching the rest of a large blob over one connection")
		last, _ := failed.at.last()
		if open || last.err != nil && last.status != 0 {
			b.blobs.forbid(b.served)
		}
		if !open && last.busy() {
			b.slots.keep(0)
			whole = !b.main.wait(last.retryAfter)
		} else if !open {
			whole = last.err != nil && last.status != 0
		}
	}
	if open {
		b.slots.keep(0)
		b.main.moveTo(b.offset)
		return
	}
	b.slots.keep(1)
	b.main.continueAt(b.offset, whole, b.slots.take(1) == 1)
}

// stop ends all requests and gives back all slots.
func (b *largeBody) stop() {
	b.main.stop()
	if b.ranges != nil {
		b.ranges.stop()
	}
	b.slots.keep(0)
}

// Seek implements io.Seeker, which is used to resume a download. The next Read starts again with one request.
func (b *largeBody) Seek(offset int64, whence int) (int64, error) {
	if b.closed {
		return 0, fmt.Errorf("seek: closed: %w", errdefs.ErrUnavailable)
	}
	offset, err := seekTo(offset, whence, b.offset, b.desc.Size)
	if err != nil || offset == b.offset {
		return offset, err
	}
	b.stop()
	b.main = newMainBody(b.ctx, b.desc, b.blobs)
	b.main.moveTo(offset)
	b.ended, b.phase, b.trial = false, asOne, trial{}
	b.offset, b.measured = offset, offset+b.config.skip
	return offset, nil
}

// Close implements io.Closer.
func (b *largeBody) Close() error {
	b.closed = true
	b.cancel()
	b.stop()
	return nil
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
