package resolve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
)

// testLargeBlobs are 1/1024 of the defaults.
var testLargeBlobs = largeBlobs{
	size: 64 << 10, skip: 8 << 10, probe: 16 << 10, probeTime: 200 * time.Millisecond, waiting: 0.7, enough: 256 << 10,
	connections: 4, chunk: 16 << 10, alone: 4, trial: 2, gain: 1.3, undecided: 0.5,
}

// blobServer is an HTTP server of blobs whose connections are in memory, so that a test in a synctest bubble can limit
// their rates exactly.
type blobServer struct {
	net.Listener
	server http.Server
	dialed chan net.Conn
	done   chan struct{}
	link   *pace // of all connections together; nil means no limit
	// perConnection is the rate of each connection, in bytes per second. Zero means no limit.
	perConnection int
	// connect, if set, returns the client's end of a connection, or why there is none.
	connect func(net.Conn) (net.Conn, error)

	mu sync.Mutex
	// answer, if set, handles a request. It returns false to continue.
	answer   func(http.ResponseWriter, *http.Request) bool
	blobs    map[digest.Digest][]byte
	requests []string // method and Range header
	open     map[*openRequest]bool
	max      int // requests that were open at the same time
}

func newBlobServer() *blobServer {
	s := &blobServer{dialed: make(chan net.Conn), done: make(chan struct{}), blobs: map[digest.Digest][]byte{}, open: map[*openRequest]bool{}}
	s.server.Handler = s
	go func() { _ = s.server.Serve(s) }()
	return s
}

// Accept implements net.Listener.
func (s *blobServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.dialed:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *blobServer) Close() error {
	close(s.done)
	return nil
}

// Addr implements net.Listener.
func (s *blobServer) Addr() net.Addr { return &net.IPAddr{} }

func (s *blobServer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	if s.connect != nil {
		var err error
		if client, err = s.connect(client); err != nil {
			return nil, err
		}
	}
	select {
	case s.dialed <- &pacedConn{server, []*pace{{rate: s.perConnection}, s.link}}:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// add adds a blob of random bytes.
func (s *blobServer) add(size int) ocispec.Descriptor {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(len(s.blobs))}).Read(b) // never fails
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(b), Size: int64(size)}
	s.blobs[d.Digest] = b
	return d
}

func (s *blobServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace(req.Method+" "+req.Header.Get("Range")))
	answer := s.answer
	s.mu.Unlock()
	if answer != nil && answer(w, req) {
		return
	}
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(s.content(req)))
}

// content returns the requested blob.
func (s *blobServer) content(req *http.Request) []byte {
	return s.blob(digest.Digest(req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]))
}

func (s *blobServer) blob(d digest.Digest) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blobs[d]
}

// seen returns the requests since the last call. It sorts those of chunks, which are sent concurrently, by their offset.
func (s *blobServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.requests
	s.requests = nil
	slices.SortStableFunc(all, func(a, b string) int { return firstOf(a) - firstOf(b) })
	return all
}

// firstOf returns the first byte of the range of a request, or -1.
func firstOf(request string) int {
	first := -1
	_, _ = fmt.Sscanf(request, "GET bytes=%d-", &first)
	return first
}

// resolver returns a resolver whose requests go to the server, and a function that ends its connections.
func (s *blobServer) resolver(t *testing.T) (*Resolver, func()) {
	t.Helper()
	r := newResolver(t, "server = \"http://blobs.example\"\n")
	transport := &http.Transport{DialContext: s.dial, MaxIdleConnsPerHost: 8}
	r.config.Transport = roundTripper(func(req *http.Request) (*http.Response, error) {
		ended := s.begin(req.Context())
		resp, err := transport.RoundTrip(req)
		if err != nil {
			ended()
			return nil, err
		}
		resp.Body = &observedBody{resp.Body, ended}
		return resp, nil
	})
	r.large = testLargeBlobs
	return r, func() {
		transport.CloseIdleConnections()
		_ = s.server.Close()
		time.Sleep(time.Second) // writes that wait for their rate end
	}
}

// begin counts a request of the client as open until the returned function is called or the context ends.
func (s *blobServer) begin(ctx context.Context) (ended func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &openRequest{ctx}
	s.open[q] = true
	n := 0
	for q := range s.open {
		if q.ctx.Err() == nil {
			n++
		}
	}
	s.max = max(s.max, n)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, q)
	}
}

type openRequest struct{ ctx context.Context }

// observedBody calls ended at its end: containerd gives the slot of a body back before it closes the body.
type observedBody struct {
	io.ReadCloser
	ended func()
}

func (b *observedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended()
	}
	return n, err
}

func (b *observedBody) Close() error {
	err := b.ReadCloser.Close()
	b.ended()
	return err
}

// pace limits a rate.
type pace struct {
	rate int // bytes per second; zero means no limit

	mu   sync.Mutex
	next time.Time
}

// reserve returns when n more bytes are within the rate.
func (p *pace) reserve(n int) time.Time {
	if p == nil || p.rate == 0 {
		return time.Time{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
	return p.next
}

// pacedConn writes at the lowest of some rates.
type pacedConn struct {
	net.Conn
	paces []*pace
}

func (c *pacedConn) Write(b []byte) (written int, _ error) {
	const piece = kib
	for len(b) > 0 {
		n := min(piece, len(b))
		var until time.Time
		for _, p := range c.paces {
			if t := p.reserve(n); t.After(until) {
				until = t
			}
		}
		time.Sleep(time.Until(until))
		n, err := c.Conn.Write(b[:n])
		written += n
		if err != nil {
			return written, err
		}
		b = b[n:]
	}
	return written, nil
}

// limitsOf returns the transfer service's options, with its limiter.
func limitsOf(downloads, buffer int) ([]transfer.ImageResolverOption, *semaphore.Weighted) {
	limiter := semaphore.NewWeighted(int64(downloads))
	return []transfer.ImageResolverOption{
		transfer.WithConcurrentLayerFetchBuffer(buffer), transfer.WithMaxConcurrentDownloads(downloads), transfer.WithDownloadLimiter(limiter),
	}, limiter
}
