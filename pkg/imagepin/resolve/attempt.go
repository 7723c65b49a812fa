package resolve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	remoteserrors "github.com/containerd/containerd/v2/core/remotes/errors"
)

// attempt is an attempt to open a blob, which can be several requests: to several hosts, after redirects and challenges,
// and again if the connection is interrupted. It is a value of their context. It says which responses will do, and has the
// answers.
type attempt struct {
	size int64 // of the blob
	// end, if it is not zero, is the end of a range: only exactly the bytes from the requested offset to end will do.
	end int64
	// once ends the attempt at the first interruption.
	once bool
	// busyEnds ends the attempt at a host that answers 429 or 503. containerd would repeat the request at once.
	busyEnds bool

	mu      sync.Mutex
	answers []answer // the last maxAnswers
}

// maxAnswers is the maximum number of answers that an attempt keeps. A download can be interrupted any number of times.
const maxAnswers = 8

// answer is the answer of a registry host, or of the server that it redirects to.
type answer struct {
	host    int    // index of the registry host
	request string // method and URL
	origin  string // scheme, host and port of the server
	status  int    // 0 means no answer
	err     error  // why there is no answer, or why the answer will not do
	// ranges is true if the server says that it serves ranges.
	ranges bool
	// retryAfter is how long the server wants the client to wait. 0 means that it does not say.
	retryAfter time.Duration
}

// accepted reports whether the answer is the content.
func (a answer) accepted() bool {
	return a.err == nil && (a.status == http.StatusOK || a.status == http.StatusPartialContent)
}

// busy reports whether the answer is a request to come back later.
func (a answer) busy() bool { return isBusy(a.status) }

func isBusy(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// unavailable reports whether the answer, or that there is none, says nothing about the content.
func (a answer) unavailable() bool { return isUnavailable(a.status) }

// describeAll says what hosts answered to requests, or why they did not answer.
func describeAll(answers []answer) []string {
	all := make([]string, len(answers))
	for i, a := range answers {
		all[i] = redact(describeAnswer(a.request, a.status, a.err))
	}
	return slices.Compact(all) // containerd repeats a request
}

// openError is the error of an attempt that no host answered with content.
type openError struct {
	error
	answers []answer
}

// Unwrap returns the error of containerd.
func (e *openError) Unwrap() error { return e.error }

type attemptKey struct{}

func withAttempt(ctx context.Context, a *attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

// ofRange reports whether a context is that of a request for a range. Its answer says nothing about the access to the
// blob: the blob is fetched in another way then.
func ofRange(ctx context.Context) bool {
	a := attemptOf(ctx)
	return a != nil && a.end > 0
}

// errNotContent is the error of a request whose response is not the requested content.
var errNotContent = errors.New("the response is not the requested content")

// attempts returns a transport that checks and notes the responses in the [attempt] of a context. host is the index of the
// registry host, and last reports whether no other host follows.
//
// containerd does not check whether a partial response is the range that it requested.
func attempts(base http.RoundTripper, host int, last bool) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		a := attemptOf(req.Context())
		if a == nil {
			return base.RoundTrip(req)
		}
		return a.roundTrip(base, req, host, last)
	})
}

func (a *attempt) roundTrip(base http.RoundTripper, req *http.Request, host int, last bool) (*http.Response, error) {
	noted := answer{host: host, request: req.Method + " " + req.URL.Redacted(), origin: originOf(req.URL)}
	first, ranged := firstByte(req)
	if a.end > 0 {
		if err := a.mayRequest(first, ranged); err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, a.end-1))
	}
	if ranged {
		noted.request += " (Range: " + req.Header.Get("Range") + ")"
	}
	resp, err := base.RoundTrip(req)
	if err != nil {
		noted.err = err
		a.note(noted)
		if a.once && req.Context().Err() == nil {
			return nil, fmt.Errorf("%w: %v", errNotContent, err) //nolint:errorlint // or containerd repeats the request
		}
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.Header.Get("Location") != "" {
		return resp, nil
	}
	noted.status, noted.ranges, noted.retryAfter = resp.StatusCode, servesRanges(resp), retryAfter(resp, time.Now())
	if resp.Request != nil && resp.Request.URL != nil {
		noted.origin = originOf(resp.Request.URL) // the scheme can differ
	}
	noted.err = a.check(resp, first, ranged, last)
	a.note(noted)
	if noted.err == nil {
		return resp, nil
	}
	_ = resp.Body.Close()
	return nil, noted.err
}

// mayRequest reports whether a part of a range may be requested, from its byte first.
func (a *attempt) mayRequest(first int64, ranged bool) error {
	if !ranged || first >= a.end {
		return fmt.Errorf("byte %d of a range that ends at %d: %w", first, a.end, errNotContent)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.once && slices.ContainsFunc(a.answers, answer.accepted) {
		return fmt.Errorf("the range was interrupted: %w", errNotContent)
	}
	return nil
}

func (a *attempt) note(noted answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.answers) == maxAnswers {
		a.answers = slices.Delete(a.answers, 0, 1)
	}
	a.answers = append(a.answers, noted)
}

// all returns the answers, oldest first.
func (a *attempt) all() []answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.answers)
}

// last returns the last answer.
func (a *attempt) last() (answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.answers) == 0 {
		return answer{}, false
	}
	return a.answers[len(a.answers)-1], true
}

// served returns the last answer with content.
func (a *attempt) served() (answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, noted := range slices.Backward(a.answers) {
		if noted.accepted() {
			return noted, true
		}
	}
	return answer{}, false
}

// check returns why a response will not do. Challenges and errors of the registry are left to containerd, except for a
// range.
func (a *attempt) check(resp *http.Response, first int64, ranged, last bool) error {
	switch status := resp.StatusCode; {
	case status == http.StatusUnauthorized:
		return nil
	case a.end > 0:
		if resp.ContentLength != a.end-first || !isRange(resp, first, a.end-1, a.size) {
			return notContent(resp)
		}
	case a.busyEnds && isBusy(status):
		return unexpected(resp)
	case status == http.StatusPartialContent && ranged:
		if !isRange(resp, first, -1, a.size) {
			return notContent(resp)
		}
	case status == http.StatusOK && !last:
		// Otherwise the error is that of the content.
		if n := resp.ContentLength; n >= 0 && n != a.size && !encoded(resp) {
			return fmt.Errorf("%w: it has %d bytes instead of %d", errNotContent, n, a.size)
		}
	}
	return nil
}

func notContent(resp *http.Response) error {
	if resp.StatusCode >= http.StatusBadRequest {
		return unexpected(resp)
	}
	return fmt.Errorf("%w: status %s, content range %q, %d bytes", errNotContent, resp.Status, resp.Header.Get("Content-Range"), resp.ContentLength)
}

// unexpected returns the error that containerd returns for a response, without its body.
func unexpected(resp *http.Response) error {
	err := remoteserrors.ErrUnexpectedStatus{Status: resp.Status, StatusCode: resp.StatusCode}
	if resp.Request != nil {
		err.RequestMethod, err.RequestURL = resp.Request.Method, resp.Request.URL.Redacted()
	}
	return err
}

// firstByte returns the first byte of an open range.
func firstByte(req *http.Request) (int64, bool) {
	from, ok := strings.CutPrefix(req.Header.Get("Range"), "bytes=")
	from, _, dash := strings.Cut(from, "-") // a redirected request has the range that was sent
	first, err := strconv.ParseInt(from, 10, 64)
	return first, ok && dash && err == nil
}

func servesRanges(resp *http.Response) bool {
	serves := resp.StatusCode == http.StatusPartialContent ||
		resp.StatusCode == http.StatusOK && strings.EqualFold(resp.Header.Get("Accept-Ranges"), "bytes")
	return serves && !encoded(resp)
}

// encoded reports whether the offsets in the response are not those in the blob.
func encoded(resp *http.Response) bool {
	e := resp.Header.Get("Content-Encoding")
	return e != "" && e != "identity"
}

// isRange reports whether resp is a range of a blob from its byte first, up to its byte last unless that is negative.
func isRange(resp *http.Response, first, last, size int64) bool {
	span, total, ok := strings.Cut(strings.TrimPrefix(resp.Header.Get("Content-Range"), "bytes "), "/")
	from, to, dash := strings.Cut(span, "-")
	return ok && dash && resp.StatusCode == http.StatusPartialContent && !encoded(resp) &&
		from == strconv.FormatInt(first, 10) && (last < 0 || to == strconv.FormatInt(last, 10)) &&
		(total == "*" || total == strconv.FormatInt(size, 10))
}

// originOf returns the scheme, the host and the port of a URL.
func originOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[strings.ToLower(u.Scheme)]
	}
	return strings.ToLower(u.Scheme + "://" + u.Hostname() + ":" + port)
}

// retryAfter returns how long a server wants a client to wait (RFC 9110, section 10.2.3).
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	value := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return max(time.Duration(seconds)*time.Second, 0)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
