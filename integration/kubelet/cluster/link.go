package cluster

import (
	"io"
	"net"
	"sync"
)

// Link forwards TCP connections to a server, such as the API server. A test can cut it for one client. It is safe for
// concurrent use.
type Link struct {
	addr, to string

	mu       sync.Mutex
	listener net.Listener // nil while the link is cut
	conns    map[net.Conn]bool
	accepted int
	stalled  chan struct{} // closed when data is forwarded again; nil if it is not stalled
	requests bool          // forwarded although it is stalled
	running  sync.WaitGroup
}

// Link returns a link to the API server.
func (c *Cluster) Link() (*Link, error) { return c.link(c.Server()) }

// link returns a link to a host and port.
func (c *Cluster) link(to string) (*Link, error) {
	ports, err := c.reservePorts(1)
	if err != nil {
		return nil, err
	}
	l := &Link{addr: net.JoinHostPort("127.0.0.1", ports[0]), to: to, conns: map[net.Conn]bool{}}
	return l, l.Restore()
}

// Addr returns the host and port of the link, which never change.
func (l *Link) Addr() string { return l.addr }

// Restore makes the link forward again after [Link.Cut] or [Link.Stall].
func (l *Link) Restore() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resume()
	if l.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", l.addr)
	if err != nil {
		return err
	}
	l.listener = listener
	l.running.Go(func() { l.accept(listener) })
	return nil
}

// Accepted returns the number of connections that clients have made.
func (l *Link) Accepted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepted
}

// Stall accepts connections, but forwards no data any more, as if the packets were dropped.
func (l *Link) Stall() { l.stall(false) }

// StallAnswers forwards no data of the server any more. The server still gets requests.
func (l *Link) StallAnswers() { l.stall(true) }

func (l *Link) stall(requests bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = requests
	if l.stalled == nil {
		l.stalled = make(chan struct{})
	}
}

// resume is called with mu locked.
func (l *Link) resume() {
	if l.stalled != nil {
		close(l.stalled)
		l.stalled = nil
	}
}

// Cut closes all connections and refuses new ones. It returns when no data is forwarded any more.
func (l *Link) Cut() {
	l.mu.Lock()
	if l.listener != nil {
		_ = l.listener.Close()
		l.listener = nil
	}
	for conn := range l.conns {
		_ = conn.Close()
	}
	l.resume()
	l.mu.Unlock()
	l.running.Wait()
}

func (l *Link) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed
		}
		l.running.Go(func() { l.forward(listener, client) })
	}
}

func (l *Link) forward(accepted net.Listener, client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer server.Close()
	if !l.hold(accepted, client, server) {
		return
	}
	defer l.release(client, server)
	var both sync.WaitGroup
	for _, way := range []struct{ to, from net.Conn }{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(stallable{way.to, l, way.to == server}, way.from)
			_ = way.to.Close() // ends the other direction
			_ = way.from.Close()
		})
	}
	both.Wait()
}

// hold records connections for [Link.Cut]. It reports false if the link was cut after the connection was accepted.
func (l *Link) hold(accepted net.Listener, conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != accepted {
		return false
	}
	l.accepted++
	for _, conn := range conns {
		l.conns[conn] = true
	}
	return true
}

func (l *Link) release(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		delete(l.conns, conn)
	}
}

// stallable is a connection to which nothing is written while the link is stalled.
type stallable struct {
	io.Writer
	l        *Link
	requests bool // it is to the server
}

// Write implements io.Writer.
func (s stallable) Write(b []byte) (int, error) {
	s.l.mu.Lock()
	stalled, forwarded := s.l.stalled, s.requests && s.l.requests
	s.l.mu.Unlock()
	if stalled != nil && !forwarded {
		<-stalled
	}
	return s.Writer.Write(b)
}
