package resolve

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
)

// answers returns a transport that returns a body for every request.
func answers(body func() io.ReadCloser) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: body(), Request: req}, nil
	})
}

func TestStalled(t *testing.T) {
	const timeout = time.Minute
	closed := func(c <-chan struct{}) bool {
		synctest.Wait()
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	for name, c := range map[string]struct {
		// run makes requests during the watch. It takes longer than the timeout.
		run  func(*testing.T, *http.Client)
		want bool
	}{
		"no request": {func(*testing.T, *http.Client) { time.Sleep(3 * timeout) }, false},
		"request without an answer": {func(_ *testing.T, c *http.Client) {
			c.Transport.(*holding).hold = true
			go func() { _, _ = c.Get("http://h/") }()
			time.Sleep(timeout * 3 / 2)
		}, true},
		"body without progress": {func(t *testing.T, c *http.Client) {
			c.Transport.(*holding).RoundTripper = c.Transport.(*holding).watch(answers(func() io.ReadCloser {
				return io.NopCloser(io.MultiReader(strings.NewReader("x"), blocked{c.Transport.(*holding).release}))
			}))
			resp := get(t, c)
			_, _ = resp.Body.Read(make([]byte, 1))
			go func() { _, _ = resp.Body.Read(make([]byte, 1)) }()
			time.Sleep(timeout * 3 / 2)
		}, true},
		"body that the unpacker does not read": {func(t *testing.T, c *http.Client) {
			resp := get(t, c)
			_, _ = resp.Body.Read(make([]byte, 1))
			time.Sleep(3 * timeout)
		}, false},
		"body that waits for a limit": {func(t *testing.T, c *http.Client) {
			ctx := bandwidth.WithLimit(t.Context(), 1)
			if err := bandwidth.NewFlow(ctx, nil).Received(ctx, bandwidth.Burst); err != nil { // the burst
				t.Error(err)
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://h/", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if n, err := resp.Body.Read(make([]byte, 100)); n != 100 || err != nil || time.Since(start) < timeout*3/2 {
				t.Errorf("got %d bytes and %v after %s", n, err, time.Since(start))
			}
		}, false},
		"slow body": {func(t *testing.T, c *http.Client) {
			resp := get(t, c)
			for range 10 {
				_, _ = resp.Body.Read(make([]byte, 1))
				time.Sleep(timeout * 3 / 4)
			}
		}, false},
		"slow unpack after the last body": {func(t *testing.T, c *http.Client) {
			resp := get(t, c)
			_ = resp.Body.Close()
			_ = resp.Body.Close()
			time.Sleep(3 * timeout)
		}, false},
		"failed request": {func(_ *testing.T, c *http.Client) {
			c.Transport.(*holding).err = errors.New("no route")
			_, _ = c.Get("http://h/")
			time.Sleep(3 * timeout)
		}, false},
		"progress in one of two bodies": {func(t *testing.T, c *http.Client) {
			_, b := get(t, c), get(t, c)
			for range 10 {
				_, _ = b.Body.Read(make([]byte, 1))
				time.Sleep(timeout * 3 / 4)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := &traffic{}
				h := &holding{release: make(chan struct{})}
				client := &http.Client{Transport: h}
				h.RoundTripper = tr.watch("h", "/v2", answers(func() io.ReadCloser { return io.NopCloser(strings.NewReader(strings.Repeat("x", 100))) }))
				h.watch = func(base http.RoundTripper) http.RoundTripper { return tr.watch("h", "/v2", base) }
				stop := make(chan struct{})
				stalled := tr.stalled(timeout, stop)
				c.run(t, client)
				if got := closed(stalled); got != c.want {
					t.Errorf("stalled: got %v, want %v", got, c.want)
				}
				close(h.release)
				close(stop)
			})
		})
	}
}

// blocked is a reader that blocks until it is released.
type blocked struct{ release chan struct{} }

func (b blocked) Read([]byte) (int, error) {
	<-b.release
	return 0, io.EOF
}

// holding is a transport that can hold or fail a request.
type holding struct {
	http.RoundTripper
	watch   func(http.RoundTripper) http.RoundTripper
	hold    bool
	err     error
	release chan struct{}
}

func (h *holding) RoundTrip(req *http.Request) (*http.Response, error) {
	switch {
	case h.hold:
		return h.watch(roundTripper(func(*http.Request) (*http.Response, error) {
			<-h.release
			return nil, errors.New("released")
		})).RoundTrip(req)
	case h.err != nil:
		return h.watch(roundTripper(func(*http.Request) (*http.Response, error) { return nil, h.err })).RoundTrip(req)
	}
	return h.RoundTripper.RoundTrip(req)
}

func get(t *testing.T, c *http.Client) *http.Response {
	t.Helper()
	resp, err := c.Get("http://h/")
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestStalledEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		stalled := (&traffic{}).stalled(time.Second, stop)
		close(stop)
		time.Sleep(time.Hour)
		select {
		case <-stalled:
			t.Error("stalled after stop")
		default:
		}
	})
}
