package resolve

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// traffic watches what passes between a session and the registry hosts.
type traffic struct {
	active atomic.Int64 // requests whose answer is still being read
	bytes  atomic.Int64 // bytes of answers read

	mu    sync.Mutex
	heard map[string]*heard // by host and path
	asked []string          // the same, in the order they were first asked
	last  string            // that answered, or failed to
}

// heard is what a registry host has said last.
type heard struct {
	status int // 0 where there was no answer
	// challenged says that the status is a 401 to a request without a
	// credential, which asks for one.
	challenged bool
	// token is what the service that gives tokens for the host has said; nil
	// where it was not asked.
	token *tokenAnswer
}

// tokenAnswer is what a token service has said last.
type tokenAnswer struct {
	host   string
	status int // 0 where there was no answer
}

// outcome is the status that counts for a registry host, and who gave it: that
// of the token service where the host asks for a token that was not to be had.
func (h *heard) outcome(registry string) (host string, status int) {
	if h.token != nil && h.status != http.StatusForbidden && (isUnavailable(h.token.status) || isRefusal(h.token.status)) {
		return h.token.host, h.token.status
	}
	return registry, h.status
}

// isRefusal reports whether a status refuses the credential, or asks for one.
func isRefusal(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// isUnavailable reports whether a status, 0 for none at all, leaves the question
// unanswered.
func isUnavailable(status int) bool {
	return status == 0 || status >= 500 || status == http.StatusTooManyRequests
}

// refusal is a 401 or 403.
type refusal struct {
	registry string // host that does not let in
	host     string // that said so: registry, or the service that gives its tokens
	status   int
}

// refused gives the refusal of the first host whose last word was 401 or 403.
// containerd's resolver goes on to the next host and returns one error for all
// of them, in which that answer may be lost.
func (t *traffic) refused() (refusal, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range t.asked {
		registry := hostname(key)
		if host, status := t.heard[key].outcome(registry); isRefusal(status) {
			return refusal{registry: registry, host: host, status: status}, true
		}
	}
	return refusal{}, false
}

// answered gives the host, with its path, that had the last word.
func (t *traffic) answered() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// statuses gives the status that counts of each host in the order they were
// asked: 0 for one that could not be reached.
func (t *traffic) statuses() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]int, len(t.asked))
	for i, key := range t.asked {
		_, all[i] = t.heard[key].outcome("")
	}
	return all
}

// of gives what a host has said, to be written to. t.mu is held.
func (t *traffic) of(key string) *heard {
	h, ok := t.heard[key]
	if !ok {
		h = &heard{}
		if t.heard == nil {
			t.heard = make(map[string]*heard)
		}
		t.heard[key] = h
		t.asked = append(t.asked, key)
	}
	return h
}

// note notes the status with which a host has answered a request.
func (t *traffic) note(key string, status int, authorized bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.of(key)
	h.status, h.challenged = status, status == http.StatusUnauthorized && !authorized
	t.last = key
}

// noteSilence notes that a host did not answer a request. What it said before
// counts, unless that was the challenge which this request was to meet. A
// request that ends with its caller says nothing else of the host.
func (t *traffic) noteSilence(key string, authorized, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.heard[key]
	switch {
	case ok && known.challenged && authorized:
		*known = heard{token: known.token}
	case !ok && !ended:
		t.of(key)
		t.last = key
	}
}

// noteToken notes what the service that gives tokens for a host has answered: 0
// where it did not.
func (t *traffic) noteToken(key, host string, status int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(key).token = &tokenAnswer{host: host, status: status}
}

// watch is a transport whose requests are seen by t. Only the registry hosts
// themselves are noted with their status: what they redirect to is somebody
// else. A server can be several of a registry's hosts, each with a path of its
// own, and refuse under one of them.
func (t *traffic) watch(registry, path string, base http.RoundTripper) http.RoundTripper {
	key := registry + path
	return t.count(roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(req)
		if req.URL.Host != registry {
			return resp, err
		}
		authorized := req.Header.Get("Authorization") != ""
		if err != nil {
			t.noteSilence(key, authorized, req.Context().Err() != nil)
			return nil, err
		}
		t.note(key, resp.StatusCode, authorized)
		return resp, nil
	}))
}

// watchTokens is watch for the requests to the service that gives tokens for a
// registry host, which may be the same server.
func (t *traffic) watchTokens(registry, path string, base http.RoundTripper) http.RoundTripper {
	return t.count(roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(req)
		if err != nil {
			t.noteToken(registry+path, req.URL.Host, 0)
			return nil, err
		}
		t.noteToken(registry+path, req.URL.Host, resp.StatusCode)
		return resp, nil
	}))
}

// count is a transport whose requests and bytes are counted.
func (t *traffic) count(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		t.active.Add(1)
		resp, err := base.RoundTrip(req)
		if err != nil {
			t.active.Add(-1)
			return nil, err
		}
		resp.Body = &watchedBody{ReadCloser: resp.Body, traffic: t}
		return resp, nil
	})
}

// hostname is a host without its path.
func hostname(host string) string {
	name, _, _ := strings.Cut(host, "/")
	return name
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type watchedBody struct {
	io.ReadCloser
	traffic *traffic
	once    sync.Once
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.traffic.bytes.Add(int64(n))
	return n, err
}

func (b *watchedBody) Close() error {
	b.once.Do(func() { b.traffic.active.Add(-1) })
	return b.ReadCloser.Close()
}

// stalled reports, on the returned channel, when requests have been open for
// timeout without a byte of progress. It ends with stop. The rule is that of
// containerd's CRI (pullProgressReporter in
// internal/cri/server/images/image_pull.go).
func (t *traffic) stalled(timeout time.Duration, stop <-chan struct{}) <-chan struct{} {
	const looks = 10
	stall := make(chan struct{})
	go func() {
		tick := time.NewTicker(max(timeout/looks, time.Millisecond))
		defer tick.Stop()
		seen, since := t.bytes.Load(), time.Now()
		for {
			select {
			case <-stop:
				return
			case now := <-tick.C:
				if b := t.bytes.Load(); b != seen || t.active.Load() == 0 {
					seen, since = b, now
					continue
				}
				if now.Sub(since) >= timeout {
					close(stall)
					return
				}
			}
		}
	}()
	return stall
}
