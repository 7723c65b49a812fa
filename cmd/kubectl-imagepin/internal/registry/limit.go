package registry

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Limits of the requests to one registry.
const (
	// atATime is how many requests a registry gets at a time.
	atATime = 8
	// maxTries is how often a request is sent if the registry asks to wait, or the connection breaks.
	maxTries = 5
	// maxPause is the longest pause that a registry can ask for.
	maxPause = time.Minute
	// firstPause is the pause if it names none. It doubles with each try.
	firstPause = time.Second
)

// newTransport returns the transport of the requests to registries. A registry that accepts connections and does not answer
// fails a request after the timeout.
func newTransport(timeout time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}).DialContext
	t.TLSHandshakeTimeout, t.ResponseHeaderTimeout = timeout, timeout
	t.MaxIdleConnsPerHost = atATime
	return t
}

// limited sends the requests to one registry: a few at a time, after the pauses that it asks for (429, and 503 with Retry-After).
// It sends the request that discovers how to authenticate once. After a request without an answer, all others fail at once, so
// that a registry that is away does not delay the rest of a run.
type limited struct {
	inner http.RoundTripper
	slots chan struct{}

	mu    sync.Mutex
	until time.Time // no request is sent before
	down  error     // why the registry is away
	pings map[string]*ping
}

// ping is the answer to the request that discovers how to authenticate.
type ping struct {
	done     chan struct{} // closed when the fields below are set
	canceled bool          // the request was canceled, so there is no answer
	status   int
	header   http.Header
	err      error
}

func newLimited(inner http.RoundTripper) *limited {
	return &limited{inner: inner, slots: make(chan struct{}, atATime), pings: make(map[string]*ping)}
}

// RoundTrip implements [http.RoundTripper].
func (l *limited) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet && req.URL.Path == "/v2/" {
		return l.ping(req)
	}
	resp, err := l.send(req)
	if err != nil && req.Context().Err() == nil {
		l.mu.Lock()
		l.down = err
		l.mu.Unlock()
	}
	return resp, err
}

// ping sends the request, or returns what the registry has answered before. Callers at the same time wait for one answer.
func (l *limited) ping(req *http.Request) (*http.Response, error) {
	for {
		p, first := l.pingOf(req.URL.String())
		if first {
			l.sendPing(p, req)
		}
		select {
		case <-p.done:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
		switch {
		case p.canceled && req.Context().Err() == nil:
			continue
		case p.err != nil:
			return nil, p.err
		}
		return &http.Response{
			Status: http.StatusText(p.status), StatusCode: p.status, Header: p.header.Clone(), Body: http.NoBody, Request: req,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}, nil
	}
}

// pingOf returns the answer for a URL, and whether the caller has to send the request.
func (l *limited) pingOf(url string) (*ping, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.pings[url]; p != nil {
		return p, false
	}
	p := &ping{done: make(chan struct{})}
	l.pings[url] = p
	return p, true
}

// sendPing sends the request and sets the answer. An answer of a request that was canceled is not kept.
func (l *limited) sendPing(p *ping, req *http.Request) {
	defer close(p.done)
	resp, err := l.send(req)
	if err == nil {
		p.status, p.header = resp.StatusCode, resp.Header
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
		_ = resp.Body.Close()
	}
	if p.err = err; err != nil && req.Context().Err() != nil {
		p.canceled = true
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.pings, req.URL.String())
	}
}

// send sends a request, again after a pause if the registry asks for it, and again if the connection breaks.
func (l *limited) send(req *http.Request) (*http.Response, error) {
	for try := 1; ; try++ {
		resp, err := l.once(req)
		switch {
		case err != nil && (try == maxTries || !temporary(err) || req.Context().Err() != nil):
			return nil, err
		case err != nil:
			// Sent again at once: the server has closed an idle connection, or restarts.
		case try == maxTries || !asksToWait(resp):
			return resp, nil
		default:
			pause := pauseOf(resp, try, time.Now())
			_ = resp.Body.Close()
			l.pause(pause)
		}
		if req.Body != nil && req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			req = req.Clone(req.Context())
			req.Body = body
		}
	}
}

// once sends a request when it may be sent. A slot is free again when the response has begun: what follows is small.
func (l *limited) once(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	for {
		l.mu.Lock()
		down, wait := l.down, time.Until(l.until)
		l.mu.Unlock()
		if down != nil {
			return nil, down
		}
		if wait <= 0 {
			break
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-l.slots }()
	return l.inner.RoundTrip(req)
}

// pause lets no request be sent for a time.
func (l *limited) pause(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := time.Now().Add(d); until.After(l.until) {
		l.until = until
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// temporary reports whether to send a request again: its connection broke, and it did not wait for an answer until the timeout.
func temporary(err error) bool {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return false
	}
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op) && op.Op == "read"
}

// asksToWait reports whether a registry asks to send a request again later.
func asksToWait(resp *http.Response) bool {
	return resp.StatusCode == http.StatusTooManyRequests ||
		resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != ""
}

// pauseOf returns how long a registry asks to wait, in seconds or as a date.
func pauseOf(resp *http.Response, try int, now time.Time) time.Duration {
	pause := firstPause << (try - 1)
	after := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(after, 10, 16); err == nil {
		pause = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(after); err == nil {
		pause = date.Sub(now)
	}
	return min(max(pause, 0), maxPause)
}
