package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// limitedError is the error of a request to a host that limits the rate of requests.
type limitedError struct {
	host  string
	until time.Time // the host accepts no request before
}

func (e *limitedError) Error() string {
	return fmt.Sprintf("%s answered 429 Too Many Requests", e.host)
}

// rateLimits knows which hosts limit the rate of requests now. containerd's resolver would repeat a request that is
// answered with 429 at once.
type rateLimits struct {
	mu    sync.Mutex
	hosts map[string]rateLimit
}

type rateLimit struct {
	until time.Time
	count int // of answers 429 since the last other answer
}

// wrap returns a transport that sends no request to a host before the time that it asked for.
func (l *rateLimits) wrap(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		host := req.URL.Host
		if until := l.until(host); time.Now().Before(until) {
			return nil, &limitedError{host: host, until: until}
		}
		resp, err := base.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		until, limited := l.note(host, resp)
		if !limited {
			return resp, nil
		}
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
		_ = resp.Body.Close()
		return nil, &limitedError{host: host, until: until}
	})
}

func (l *rateLimits) until(host string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hosts[host].until
}

// note records an answer.
func (l *rateLimits) note(host string, resp *http.Response) (until time.Time, limited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if resp.StatusCode != http.StatusTooManyRequests {
		if known, ok := l.hosts[host]; ok {
			known.count = 0
			l.hosts[host] = known
		}
		return time.Time{}, false
	}
	if l.hosts == nil {
		l.hosts = make(map[string]rateLimit)
	}
	known := l.hosts[host]
	if asked := time.Now().Add(retryAfter(resp.Header, known.count)); asked.After(known.until) {
		known.until = asked
	}
	known.count++
	l.hosts[host] = known
	return known.until, true
}

// maxRetryAfter bounds the time in Retry-After.
const maxRetryAfter = 24 * time.Hour

// retryAfter returns the time in Retry-After (RFC 9110, section 10.2.3), or a time that doubles with each answer.
func retryAfter(h http.Header, count int) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil && seconds >= 0 {
		return min(time.Duration(min(seconds, int(maxRetryAfter/time.Second)))*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return time.Second << min(count, 5)
}

// waitFor calls do until no host limits the rate of requests. It waits for at most Config.MaxWait in total.
func (c *Client) waitFor(ctx context.Context, ref reference.Named, do func() error) error {
	left := c.config.MaxWait
	for {
		err := do()
		var limited *limitedError
		if !errors.As(err, &limited) {
			return hinted(err)
		}
		wait := max(time.Until(limited.until), time.Millisecond)
		if wait > left {
			return &imagepin.Error{
				Reason: imagepin.CannotPullImageManifest, Ref: ref.String(), Class: errdefs.ErrUnavailable,
				Message: fmt.Sprintf("%s limits the rate of requests, for another %s", limited.host, wait.Round(time.Second)),
				Hint:    "Wait, log in with docker login, or configure a mirror with hosts.toml.",
			}
		}
		left -= wait
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hinted replaces the hints of errors, which are for nodes, by hints for users of docker's configuration.
func hinted(err error) error {
	var e *imagepin.Error
	if !errors.As(err, &e) {
		return err
	}
	own := *e
	switch e.Reason {
	case imagepin.PullAccessDenied:
		own.Hint = "Log in with docker login, and check that this user may read the repository."
	case imagepin.ManifestPullTimeout:
		own.Hint = "Check the network to the registry and its mirrors."
	}
	return &own
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
