package resolve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
)

const (
	// maxBusy is how often a request of a fallback is repeated because the server answers 429 or 503.
	maxBusy = 5
	// minWait is the time before the first repetition if the server does not say how long to wait. It doubles each time.
	minWait = time.Second
	// maxWait is the maximum time to wait. A server that wants more has failed.
	maxWait = time.Minute
	// maxAway is how often a request is repeated because the network has no way to a host, or the host is silent, in a row.
	maxAway = 5
	// silences is how many connections in a row may be silent before a pull ends that makes no progress.
	silences = 4
	// minBeforeSilence is the minimum number of bytes that a connection brings before it counts as lost when it is silent.
	minBeforeSilence = 256 << 10
)

// opening says how a blob is opened.
type opening struct {
	offset int64
	// fallback is true after something else has failed: the request has no Range that containerd adds.
	fallback bool
	// unlimited is true if the caller has a slot of the node's download limit.
	unlimited bool
}

// mainBody is the body of a blob over one connection. It resumes an interrupted download with a range: as containerd does
// after a connection that is closed, and also after one that is reset, times out or becomes silent, as long as each connection
// brings more of the blob. While the network has no way to the host, it waits and tries again.
// If that fails, it continues in a way that does not depend on what failed: at the next registry host if there is one, and
// otherwise with a request for the whole blob, of which it discards what it has already returned.
type mainBody struct {
	ctx   context.Context
	desc  ocispec.Descriptor
	blobs sessionBlobs

	rc     io.ReadCloser // nil if it has to be opened
	cancel context.CancelFunc
	at     *attempt // that opened rc
	pos    int64    // offset of rc
	from   int64    // offset at which rc was opened, for its reader
	offset int64    // of the next byte to return

	fallback  bool // what happens is the result of a failure
	whole     bool // open without a range
	unlimited bool
	tried     int64 // offset from which the whole blob was requested last, or -1
	busy      int   // requests that were answered with 429 or 503, in a row
	resumed   int64 // offset after the last connection that was lost
	away      int   // requests for which the network had no way to a host, in a row

	silent atomic.Bool // rc was ended because it was silent
}

func newMainBody(ctx context.Context, desc ocispec.Descriptor, blobs sessionBlobs) *mainBody {
	return &mainBody{ctx: ctx, desc: desc, blobs: blobs, tried: -1}
}

// Read implements io.Reader.
func (m *mainBody) Read(p []byte) (int, error) {
	for {
		n, err := m.read(p)
		if err == nil && n == 0 && len(p) > 0 {
			continue // what it has discarded
		}
		if err == nil || err == io.EOF && m.offset == m.desc.Size || m.ctx.Err() != nil {
			return n, err
		}
		again, err := m.recover(err)
		if !again || n > 0 {
			return n, err
		}
	}
}

// read reads once from the current body.
func (m *mainBody) read(p []byte) (int, error) {
	if m.rc == nil {
		if err := m.open(); err != nil {
			return 0, err
		}
	}
	if m.pos < m.offset {
		n, err := m.rc.Read(p[:min(int64(len(p)), m.offset-m.pos)])
		m.pos += int64(n)
		return 0, err
	}
	n, err := m.readUntilSilent(p)
	if n > 0 && m.offset == m.from {
		m.begun()
	}
	m.pos += int64(n)
	m.offset += int64(n)
	return n, err
}

// readUntilSilent reads from the current body. It ends the request if the connection becomes silent, for example because a firewall
// has forgotten it. A host may take long before it sends the first byte, and one that sends a little over each connection must
// not keep a pull from ending.
func (m *mainBody) readUntilSilent(p []byte) (int, error) {
	limit := m.blobs.silence()
	if limit <= 0 || m.offset-m.from < minBeforeSilence {
		return m.rc.Read(p)
	}
	var ended atomic.Bool
	var timer *time.Timer
	cancel := m.cancel
	timer = time.AfterFunc(math.MaxInt64, func() {
		switch {
		case ended.Load():
		case m.blobs.throttled():
			timer.Reset(limit)
		default:
			m.silent.Store(true)
			cancel()
		}
	})
	timer.Reset(limit)
	defer timer.Stop()
	defer ended.Store(true)
	return m.rc.Read(p)
}

// begun notes where the bytes are from that a new request returns.
func (m *mainBody) begun() {
	m.busy, m.away = 0, 0
	m.blobs.setMixed(m.desc, m.offset > 0)
	if served, ok := m.at.served(); ok {
		m.blobs.comesFrom(m.desc, served.host)
	}
}

func (m *mainBody) open() error {
	how := opening{offset: m.offset, fallback: m.fallback, unlimited: m.unlimited}
	if m.whole {
		how.offset = 0
	}
	m.at = &attempt{size: m.desc.Size, busyEnds: m.fallback}
	ctx, cancel := context.WithCancel(withAttempt(m.ctx, m.at))
	rc, err := m.blobs.open(ctx, m.desc, how)
	if err != nil {
		cancel()
		return err
	}
	m.rc, m.cancel, m.pos, m.from = rc, cancel, how.offset, m.offset
	return nil
}

// recover prepares another way after a failure, if there is one. Otherwise it returns the error.
func (m *mainBody) recover(err error) (again bool, _ error) {
	m.stop()
	lost := m.silent.Swap(false) || isLost(err)
	served, ok := m.at.served()
	last, _ := m.at.last()
	busy := m.fallback && !ok && last.busy()
	switch {
	case ok && lost && m.offset > m.resumed: // progress since the last time
		m.whole, m.resumed = false, m.offset
		m.log(err).WithField("offset", m.offset).Info("the connection for a blob was lost, fetching its rest")
	case !ok && m.offset > 0 && isAway(err) && m.away < maxAway && m.waitForNetwork():
	case ok && m.blobs.skip(m.desc, served.host):
		m.whole = false
		m.log(err).WithField("server", served.origin).Info("fetching the rest of a blob from the next host")
	case m.offset > 0 && m.tried != m.offset && (m.fallback || interrupted(err)): // progress since the last time
		m.whole, m.tried = true, m.offset
		m.log(err).WithField("offset", m.offset).Info("fetching a blob from its beginning to continue")
		if busy {
			m.wait(last.retryAfter)
		}
	case busy && m.busy < maxBusy && m.wait(last.retryAfter):
	default:
		return false, m.failed(err)
	}
	m.fallback = true
	return true, nil
}

// failed adds the answers to the error of a request that no host answered with content.
func (m *mainBody) failed(err error) error {
	if _, ok := m.at.served(); ok || err == io.EOF {
		return err
	}
	return &openError{err, m.at.all()}
}

// log returns a logger with the reason of what recover does.
func (m *mainBody) log(reason error) *log.Entry {
	return log.G(m.ctx).WithError(RedactError(short(reason)))
}

// interrupted reports whether an error is that of a connection, and not of the content: it is shorter or longer then.
func interrupted(err error) bool { return err != io.EOF && !errdefs.IsFailedPrecondition(err) }

// isLost reports whether an error is that of a connection which was reset or has timed out.
func isLost(err error) bool { return err == io.ErrUnexpectedEOF || errno.Network(err) }

// isAway reports whether a request failed because the network has no way to its host. A host that refuses the connection
// answers: nothing serves the blob there.
func isAway(err error) bool {
	var network *net.OpError
	var timeout net.Error
	return errors.As(err, &network) && network.Op == "dial" && !errors.Is(err, syscall.ECONNREFUSED) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

// waitForNetwork waits longer each time before the next request. It reports whether to try again.
func (m *mainBody) waitForNetwork() bool {
	ended := m.blobs.waiting()
	defer ended()
	wait := minWait << m.away
	m.away++
	log.G(m.ctx).WithField("wait", wait).Info("waiting for the network before the next request for a blob")
	return pause.Wait(m.ctx, wait) == nil
}

// short returns the error of a body that ended too early.
func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// wait waits as long as a server wants, and otherwise longer each time. It reports whether to try again.
func (m *mainBody) wait(want time.Duration) bool {
	if want == 0 {
		want = minWait << m.busy
	}
	if m.busy++; want > maxWait {
		return false
	}
	log.G(m.ctx).WithField("wait", want).Info("waiting before the next request for a blob, as its server is busy")
	return pause.Wait(m.ctx, want) == nil
}

// moveTo sets the offset of the next byte. If the body is open and before the offset, it discards the bytes up to there.
func (m *mainBody) moveTo(offset int64) {
	if offset == m.offset {
		return
	}
	if m.offset, m.from = offset, offset; m.rc != nil && m.pos > offset {
		m.stop()
	}
}

// continueAt continues after ranges, at an offset. whole is true if ranges failed in a way that makes another one useless.
// unlimited is true if the caller has a slot of the node's download limit.
func (m *mainBody) continueAt(offset int64, whole, unlimited bool) {
	m.stop()
	m.offset, m.fallback, m.unlimited, m.whole = offset, true, unlimited, whole
	if whole {
		m.tried = offset
	}
}

// stop ends the request.
func (m *mainBody) stop() {
	if m.rc == nil {
		return
	}
	m.cancel() // containerd does not end the first chunk's request, and waits for it
	if err := m.rc.Close(); err != nil && !errors.Is(err, context.Canceled) {
		log.G(m.ctx).WithError(RedactError(err)).Debug("cannot close the body of a blob")
	}
	m.rc = nil
}

// Seek implements io.Seeker, which is used to resume a download.
func (m *mainBody) Seek(offset int64, whence int) (int64, error) {
	offset, err := seekTo(offset, whence, m.offset, m.desc.Size)
	if err == nil && offset != m.offset {
		m.stop()
		m.moveTo(offset)
	}
	return offset, err
}

// Close implements io.Closer.
func (m *mainBody) Close() error {
	m.stop()
	return nil
}

// seekTo returns the offset that a Seek from an offset moves to.
func seekTo(offset int64, whence int, from, size int64) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += from
	case io.SeekEnd:
		offset += size
	default:
		return 0, fmt.Errorf("seek: invalid whence %d: %w", whence, errdefs.ErrInvalidArgument)
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek: negative offset: %w", errdefs.ErrInvalidArgument)
	}
	return offset, nil
}
