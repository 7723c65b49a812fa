package registry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func newRequest(t *testing.T, ctx context.Context, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// A registry that asks to wait gets the request again, with its body.
func TestAsksToWait(t *testing.T) {
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(body))
		if len(bodies) < 3 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer server.Close()
	l := newLimited(http.DefaultTransport)
	resp, err := l.RoundTrip(newRequest(t, t.Context(), server.URL))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("got %+v, %v", resp, err)
	}
	resp.Body.Close()
	if got := strings.Join(bodies, " "); got != "body body body" {
		t.Errorf("got bodies %q, want the body three times", got)
	}
	if l.down != nil {
		t.Errorf("the registry is down: %v", l.down)
	}
}

// Pauses apply to all requests to a registry. A canceled request does not wait.
func TestPauseIsOfTheRegistry(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	l := newLimited(http.DefaultTransport)
	l.pause(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.RoundTrip(newRequest(t, ctx, server.URL)); !errors.Is(err, context.Canceled) || requests.Load() != 0 {
		t.Errorf("got %v and %d requests, want none in the pause", err, requests.Load())
	}
	if l.down != nil {
		t.Errorf("a canceled request means that the registry is down: %v", l.down)
	}
}

func TestPauseOf(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for after, want := range map[string]time.Duration{
		"": 4 * time.Second, "7": 7 * time.Second, "0": 0, "99999": 4 * time.Second, "3600": maxPause, "-1": 4 * time.Second, "x": 4 * time.Second,
		now.Add(9 * time.Second).Format(http.TimeFormat): 9 * time.Second, now.Add(-time.Hour).Format(http.TimeFormat): 0,
	} {
		resp := &http.Response{Header: http.Header{"Retry-After": {after}}}
		if got := pauseOf(resp, 3, now); got != want {
			t.Errorf("%q: got %s, want %s", after, got, want)
		}
	}
}

// A few requests are sent at a time.
func TestAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := blocked{release: make(chan struct{})}
		l := newLimited(&inner)
		var group sync.WaitGroup
		for range 4 * atATime {
			group.Go(func() {
				if _, err := l.RoundTrip(newRequest(t, t.Context(), "http://registry.example.com")); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := inner.n.Load(); n != atATime {
			t.Errorf("got %d requests at a time, want %d", n, atATime)
		}
		close(inner.release)
		group.Wait()
		if n := inner.n.Load(); n != 4*atATime {
			t.Errorf("got %d requests, want all", n)
		}
	})
}

// blocked is a transport that does not answer before it is released.
type blocked struct {
	n       atomic.Int32
	release chan struct{}
}

func (b *blocked) RoundTrip(req *http.Request) (*http.Response, error) {
	b.n.Add(1)
	<-b.release
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
}

// All requests to a registry wait for its pause.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := blocked{release: make(chan struct{})}
		close(inner.release)
		l := newLimited(&inner)
		l.pause(time.Minute)
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				if _, err := l.RoundTrip(newRequest(t, t.Context(), "http://registry.example.com")); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Minute - time.Nanosecond) // of the test's own clock
		synctest.Wait()
		if n := inner.n.Load(); n != 0 {
			t.Errorf("got %d requests in the pause", n)
		}
		group.Wait()
		if n := inner.n.Load(); n != 3 {
			t.Errorf("got %d requests, want all", n)
		}
	})
}

// counter is a transport that counts requests.
type counter struct {
	http.RoundTripper
	n atomic.Int32
}

func (c *counter) RoundTrip(req *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(req)
}

// After a request without an answer, none is sent.
func TestDown(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the client is gone
		<-r.Context().Done()
	}))
	defer silent.Close()
	inner := newTransport(50 * time.Millisecond)
	defer inner.CloseIdleConnections()
	sent := &counter{RoundTripper: inner}
	l := newLimited(sent)
	for range 3 {
		if _, err := l.RoundTrip(newRequest(t, t.Context(), silent.URL)); err == nil {
			t.Error("no error")
		}
	}
	if n := sent.n.Load(); n != 1 {
		t.Errorf("got %d requests, want one", n)
	}
}

// A connection that breaks is no reason to give up.
func TestBrokenConnection(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if requests.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
	}))
	defer server.Close()
	l := newLimited(http.DefaultTransport)
	resp, err := l.RoundTrip(newRequest(t, t.Context(), server.URL))
	if err != nil || requests.Load() != 2 {
		t.Fatalf("got %v with %d requests, want two", err, requests.Load())
	}
	resp.Body.Close()
}

// One request discovers how to authenticate, for all callers. A caller that is canceled does not decide for the others.
func TestPing(t *testing.T) {
	var requests atomic.Int32
	started := make(chan struct{}, 10)
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		started <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		w.Header().Set("WWW-Authenticate", "Basic")
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	l := newLimited(http.DefaultTransport)
	ping := func(ctx context.Context) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		return l.RoundTrip(req)
	}
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan error)
	go func() {
		_, err := ping(ctx)
		canceled <- err
	}()
	<-started
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			resp, err := ping(t.Context())
			if err != nil || resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") != "Basic" {
				t.Errorf("got %+v, %v", resp, err)
			}
		})
	}
	cancel()
	if err := <-canceled; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
	<-started
	close(release)
	group.Wait()
	if n := requests.Load(); n != 2 {
		t.Errorf("got %d requests, want the canceled one and one more", n)
	}
}
