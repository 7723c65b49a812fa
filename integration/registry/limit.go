package registry

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"golang.org/x/time/rate"
)

// Limit starts a second address of the registry, and returns it as [Registry.Host] does. It has the same content, and
// the requests to it are in the same record. It sends at most bytesPerSecond over each connection, as registries and
// networks far away do. [Registry.Down] does not stop it, [Registry.Close] does.
func (r *Registry) Limit(bytesPerSecond int) (host string, _ error) {
	return r.limit(func() *rate.Limiter { return rate.NewLimiter(rate.Limit(bytesPerSecond), burst) })
}

// LimitTotal is Limit for all connections together, as the link of a node does.
func (r *Registry) LimitTotal(bytesPerSecond int) (host string, _ error) {
	shared := rate.NewLimiter(rate.Limit(bytesPerSecond), burst)
	return r.limit(func() *rate.Limiter { return shared })
}

func (r *Registry) limit(limiter func() *rate.Limiter) (host string, _ error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("starting the limited address of the registry: %w", err)
	}
	srv := &http.Server{Handler: r, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(limitedListener{l, limiter}) // returns when the server is closed
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limited = append(r.limited, func() {
		_ = srv.Close()
		<-served
	})
	return l.Addr().String(), nil
}

// limitedListener limits the bytes that are sent over each of its connections.
type limitedListener struct {
	net.Listener
	limiter func() *rate.Limiter // of a connection
}

// The bytes that are sent at once. A limiter that wakes up late catches up to burst bytes: at 60 MiB/s, this is 16 ms.
const (
	piece = 256 << 10
	burst = 1 << 20
)

func (l limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &limitedConn{Conn: c, limiter: l.limiter(), open: ctx, closed: cancel}, nil
}

type limitedConn struct {
	net.Conn
	limiter *rate.Limiter
	open    context.Context // ends when the connection is closed
	closed  context.CancelFunc
}

// Write waits before each piece until the limit allows it.
func (c *limitedConn) Write(b []byte) (written int, _ error) {
	for len(b) > 0 {
		n := min(piece, len(b))
		if err := c.limiter.WaitN(c.open, n); err != nil {
			return written, net.ErrClosed
		}
		n, err := c.Conn.Write(b[:n])
		written += n
		if err != nil {
			return written, err
		}
		b = b[n:]
	}
	return written, nil
}

func (c *limitedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
