package resolve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
)

const mib = 1 << 20

// brokenConn is a connection that fails after some bytes.
type brokenConn struct {
	net.Conn
	left int
	why  error
}

func (c *brokenConn) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, c.why
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// opError returns the error of a system call on a connection.
func opError(op string, no syscall.Errno) error {
	return &net.OpError{Op: op, Net: "tcp", Err: os.NewSyscallError(op, no)}
}

// TestBrokenLink fetches 10 MiB over a link that breaks after each MiB, in each way in which a connection ends, and that has no
// way to the host for some seconds after it. No byte is fetched twice.
func TestBrokenLink(t *testing.T) {
	for name, why := range map[string]error{
		"closed": io.EOF, "reset": opError("read", syscall.ECONNRESET), "timed out": opError("read", syscall.ETIMEDOUT),
	} {
		for _, away := range []int{0, 3} {
			t.Run(fmt.Sprint(name, ", away ", away), func(t *testing.T) {
				inBubble(t, 1, func(t *testing.T, s *blobServer, session *Session) {
					s.perConnection = 0
					fails, connections := away, 0
					s.connect = func(c net.Conn) (net.Conn, error) {
						if connections > 0 && fails > 0 {
							fails--
							return nil, opError("dial", syscall.ENETUNREACH)
						}
						fails = away
						connections++
						return &brokenConn{c, mib + 300, why}, nil // with the header
					}
					const size = 10 * mib
					fetchAll(t, s, session, s.add(size), consume(nil))
					if got := session.traffic.bytes.Load(); got != size {
						t.Errorf("received %d bytes, want %d", got, size)
					}
					if connections < 10 {
						t.Errorf("got %d connections, want at least 10", connections)
					}
					wantKinds(t, s.seen(), 1, 0, connections-1)
				})
			})
		}
	}
}

// silentConn is a connection that is silent after some bytes, until it is closed.
type silentConn struct {
	*brokenConn
	closed chan struct{}
}

func (c *silentConn) Read(b []byte) (int, error) {
	if c.left == 0 {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.brokenConn.Read(b)
}

func (c *silentConn) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return c.brokenConn.Close()
}

// TestSilentLink fetches over connections of which each becomes silent after a MiB, as if a firewall had forgotten it. A pull may be
// without progress for a minute. No byte is fetched twice, and the pull does not stall. It does if all connections are silent.
func TestSilentLink(t *testing.T) {
	for name, each := range map[string]int{"some progress": mib + 300, "no progress": 0} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(t *testing.T, s *blobServer, session *Session) {
				s.perConnection = 0
				connections := 0
				s.connect = func(c net.Conn) (net.Conn, error) {
					left := mib + 300
					if connections++; connections > 1 {
						left = each
					}
					return &silentConn{&brokenConn{c, left, nil}, make(chan struct{})}, nil
				}
				ctx, cancel := context.WithCancel(quiet(t))
				defer cancel()
				stalled := session.Stalled(ctx, time.Minute)
				const size = 5 * mib
				desc := s.add(size)
				rc := openBlob(t, ctx, session, desc)
				defer func() { _ = rc.Close() }()
				done := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, rc)
					done <- err
				}()
				select {
				case err := <-done:
					if each == 0 || err != nil || session.traffic.bytes.Load() != size {
						t.Errorf("got %v and %d bytes, want %d", err, session.traffic.bytes.Load(), size)
					}
				case <-stalled:
					if each > 0 {
						t.Errorf("the pull stalled after %d bytes and %d connections", session.traffic.bytes.Load(), connections)
					}
					cancel()
					<-done
				}
			})
		})
	}
}

// TestThrottledLinkIsNotSilent fetches with a rate at which what has arrived waits longer than a connection may be silent here. The
// connection stays.
func TestThrottledLinkIsNotSilent(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, s *blobServer, session *Session) {
		s.perConnection = 0
		connections := 0
		s.connect = func(c net.Conn) (net.Conn, error) {
			connections++
			return c, nil
		}
		ctx, cancel := context.WithCancel(bandwidth.WithLimit(quiet(t), 1<<10))
		defer cancel()
		stalled := session.Stalled(ctx, 40*time.Millisecond)
		const size = mib
		rc := openBlob(t, ctx, session, s.add(size))
		defer func() { _ = rc.Close() }()
		began := time.Now()
		if _, err := io.Copy(io.Discard, rc); err != nil || session.traffic.bytes.Load() != size || connections != 1 {
			t.Errorf("got %v and %d bytes over %d connections, want %d over 1", err, session.traffic.bytes.Load(), connections, size)
		}
		if took := time.Since(began); took < 15*time.Minute {
			t.Errorf("took %s: the rate is not limited", took)
		}
		select {
		case <-stalled:
			t.Error("the pull stalled")
		default:
		}
	})
}

// TestBrokenLinkWithoutRanges fetches from a host that does not serve ranges over a link that breaks once. The host is asked for
// the whole blob again.
func TestBrokenLinkWithoutRanges(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, s *blobServer, session *Session) {
		s.perConnection = 0
		broken := false
		s.connect = func(c net.Conn) (net.Conn, error) {
			if broken {
				return c, nil
			}
			broken = true
			return &brokenConn{c, mib + 300, opError("read", syscall.ECONNRESET)}, nil
		}
		s.answer = func(w http.ResponseWriter, req *http.Request) bool {
			http.ServeContent(w, withoutRange(req), "", time.Time{}, bytes.NewReader(s.content(req)))
			return true
		}
		const size = 2 * mib
		fetchAll(t, s, session, s.add(size), consume(nil))
		if got := session.traffic.bytes.Load(); got <= size+mib-10*kib || got > size+mib+300 {
			t.Errorf("received %d bytes, want %d and what came over the first connection", got, size)
		}
	})
}

// TestLinkStaysAway fetches over a link that breaks and does not come back. The fetch ends with an error.
func TestLinkStaysAway(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, s *blobServer, session *Session) {
		s.perConnection = 0
		broken := false
		s.connect = func(c net.Conn) (net.Conn, error) {
			if broken {
				return nil, opError("dial", syscall.EHOSTUNREACH)
			}
			broken = true
			return &brokenConn{c, mib, opError("read", syscall.ECONNRESET)}, nil
		}
		start := time.Now()
		rc := openBlob(t, quiet(t), session, s.add(2*mib))
		defer func() { _ = rc.Close() }()
		_, err := io.Copy(io.Discard, rc)
		if !errors.Is(err, syscall.EHOSTUNREACH) || time.Since(start) > time.Minute {
			t.Errorf("got %v after %s, want that the host is unreachable", err, time.Since(start))
		}
		var e *imagepin.Error
		if errors.As(err, &e) && e.Reason == imagepin.ContentCorrupt {
			t.Errorf("got %v, want no error of the content", err)
		}
	})
}

// TestWaitingForTheNetworkIsNoProgress waits for the network longer than a pull may be without progress.
func TestWaitingForTheNetworkIsNoProgress(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, s *blobServer, session *Session) {
		s.perConnection = 0
		broken := false
		s.connect = func(c net.Conn) (net.Conn, error) {
			if broken {
				return nil, opError("dial", syscall.EHOSTUNREACH)
			}
			broken = true
			return &brokenConn{c, mib, opError("read", syscall.ECONNRESET)}, nil
		}
		stalled := session.Stalled(t.Context(), 10*time.Second)
		rc := openBlob(t, quiet(t), session, s.add(2*mib))
		defer func() { _ = rc.Close() }()
		failed := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, rc)
			failed <- err
		}()
		select {
		case <-stalled:
		case err := <-failed:
			t.Errorf("the fetch failed before it stalled: %v", err)
			return
		}
		<-failed
	})
}

// withoutRange returns a request without its range.
func withoutRange(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	req.Header.Del("Range")
	return req
}
