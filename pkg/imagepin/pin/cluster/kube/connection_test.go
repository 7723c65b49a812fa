package kube

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// relay is a network between client and API server that can lose what is sent on connections of the past.
type relay struct {
	net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
	lost  int // how many connections lose everything
	// closed is closed when the client has closed its first connection.
	closed chan struct{}
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to, closed: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				conn.Close()
				return
			}
			r.mu.Lock()
			n := len(r.conns) / 2
			r.conns = append(r.conns, conn, up)
			r.mu.Unlock()
			wg.Go(func() {
				r.copy(n, up, conn)
				if n == 0 {
					close(r.closed)
				}
			})
			wg.Go(func() { r.copy(n, conn, up) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		for _, c := range r.conns {
			c.Close()
		}
		r.mu.Unlock()
		wg.Wait()
	})
	return r
}

// lose makes all connections so far lose everything, without closing them.
func (r *relay) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = len(r.conns) / 2
}

func (r *relay) copy(n int, dst, src net.Conn) {
	b := make([]byte, 32<<10)
	for {
		k, err := src.Read(b)
		r.mu.Lock()
		lost := n < r.lost
		r.mu.Unlock()
		if err != nil {
			if !lost {
				dst.Close()
			}
			return
		}
		if !lost {
			if _, err := dst.Write(b[:k]); err != nil {
				return
			}
		}
	}
}

// TestVanishedServer checks that a call on a connection whose other end has vanished ends at the timeout, and that the
// next call uses another connection.
func TestVanishedServer(t *testing.T) {
	a := startServer(t)
	network := newRelay(t, a.Listener.Addr().String())
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, path, "https://"+network.Addr().String(), a.ca(), tokenUser)
	c, clock := newClient(t, path)
	if err := c.call(t.Context(), callFind); err != nil {
		t.Fatal(err)
	}
	first := a.got()[0]
	network.lose()
	c.timeout = 50 * time.Millisecond
	start := time.Now()
	wantUnavailable(t, c.call(t.Context(), callFind), "did not answer in time")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the call took %s", took)
	}
	// The health checks of HTTP/2 would close the connection after 45 seconds.
	c.timeout = 20 * time.Second
	clock.advance(maxPause)
	if err := c.call(t.Context(), callFind); err != nil {
		t.Fatal(err)
	}
	if got := a.got(); len(got) != 1 || got[0].remote == first.remote {
		t.Errorf("got requests %v, want one on another connection", got)
	}
	select {
	case <-network.closed:
	case <-time.After(20 * time.Second):
		t.Error("the client has not closed the first connection")
	}
}

// TestRestartedServer checks calls before, during and after a restart of the server.
func TestRestartedServer(t *testing.T) {
	a := startServer(t)
	c, clock := a.client()
	if err := c.call(t.Context(), callFind); err != nil {
		t.Fatal(err)
	}
	addr := a.Listener.Addr().String()
	a.CloseClientConnections()
	if err := c.call(t.Context(), callFind); err != nil {
		t.Errorf("after the connections were closed: %v", err)
	}
	a.Close()
	wantUnavailable(t, c.call(t.Context(), callFind), "connection refused")

	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	b := newServer(t)
	b.Listener.Close()
	b.Listener = l
	b.StartTLS()
	wantUnavailable(t, c.call(t.Context(), callFind), "no request was sent")
	clock.advance(maxPause)
	if err := c.call(t.Context(), callFind); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

// TestOneConnection checks that calls share a connection.
func TestOneConnection(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	for range 3 {
		for _, call := range []string{callFind, callClaim} {
			if err := c.call(t.Context(), call); err != nil {
				t.Fatal(err)
			}
		}
	}
	remotes := map[string]bool{}
	for _, r := range a.got() {
		remotes[r.remote] = true
	}
	if len(remotes) != 1 {
		t.Errorf("%d connections, want 1", len(remotes))
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for remote := range remotes {
		a.awaitClosed(remote)
	}
}

// TestNoRateLimit checks that rest does not delay many requests: its default is 5 a second.
func TestNoRateLimit(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range 300 {
		if err := c.call(ctx, callFind); err != nil {
			t.Fatal(err)
		}
	}
}
