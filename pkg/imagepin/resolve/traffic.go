package resolve

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
)

// traffic tracks the requests of a session to the registry hosts.
type traffic struct {
	limiter *bandwidth.Limiter // of the node; may be nil
	busy    *busyAnswers       // of a lookup; nil for a pull

	// active is the number of requests that wait for their registry: for a response, or in a Read of its body. A body that nobody
	// reads, because the unpacker or the disk is slow, is not one.
	active    atomic.Int64
	throttled atomic.Int64 // requests that wait for a limit
	bytes     atomic.Int64 // bytes of responses read
	limit     atomic.Int64 // time without progress after which a pull ends, a time.Duration; 0 means none

	mu      sync.Mutex
	answers map[string]*hostAnswer // by host and path
	order   []string               // keys of answers, in the order of the first request
	last    string                 // key of the last host that answered, or failed to
}

// hostAnswer is the last answer of a registry host.
type hostAnswer struct {
	status int   // 0 means no answer
	err    error // why there is no answer
	// challenged means that the status is a 401 to a request without a credential, which asks for one.
	challenged bool
	// token is the last answer of the host's token service, or nil if it was not asked.
	token *tokenAnswer
}

// tokenAnswer is the last answer of a token service.
type tokenAnswer struct {
	host   string
	status int   // 0 means no answer
	err    error // why there is no answer
}

// outcome returns the status that counts for a registry host, and who sent it. If the host requires a token and the
// token service did not issue one, this is the status of the token service.
func (h *hostAnswer) outcome(registry string) (host string, status int) {
	if h.token != nil && h.status != http.StatusForbidden && (isUnavailable(h.token.status) || isRefusal(h.token.status)) {
		return h.token.host, h.token.status
	}
	return registry, h.status
}

// isRefusal reports whether a status rejects the credential, or asks for one.
func isRefusal(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// isUnavailable reports whether a status means that the host is unavailable. 0 means no answer.
func isUnavailable(status int) bool {
	return status == 0 || status >= 500 || status == http.StatusTooManyRequests
}

// refusal is a 401 or 403.
type refusal struct {
	registry string // host that refused access
	host     string // host that sent the status: registry, or its token service
	status   int
}

// refused returns the refusal of the first host whose last answer was 401 or 403. containerd's resolver continues with
// the next host and returns one error for all hosts, which may not contain that answer. The host silent does not count.
func (t *traffic) refused(silent string) (refusal, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range t.order {
		registry := hostname(key)
		if registry == silent {
			continue
		}
		if host, status := t.answers[key].outcome(registry); isRefusal(status) {
			return refusal{registry: registry, host: host, status: status}, true
		}
	}
	return refusal{}, false
}

// answered returns the host that sent the last answer, with its path.
func (t *traffic) answered() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// statuses returns the status of each host, in the order of the requests: 0 for a host that could not be reached.
func (t *traffic) statuses() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]int, len(t.order))
	for i, key := range t.order {
		_, all[i] = t.answers[key].outcome("")
	}
	return all
}

// described says for each host what it answered, or why it did not answer, in the order of the requests.
func (t *traffic) described() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]string, len(t.order))
	for i, key := range t.order {
		name, h := hostname(key), t.answers[key]
		host, status := h.outcome(name)
		why := h.err
		if host != name {
			why = h.token.err
			host += " (the token service of " + name + ")"
		}
		all[i] = describeAnswer(host, status, why)
	}
	return all
}

// describeAnswer says what a host answered, or why it did not answer.
func describeAnswer(host string, status int, why error) string {
	const longest = 256
	switch {
	case status != 0:
		return fmt.Sprintf("%s answered %d %s", host, status, http.StatusText(status))
	case why == nil:
		return host + " did not answer"
	}
	return fmt.Sprintf("%s did not answer: %s", host, imagepin.Bound(RedactError(why).Error(), longest))
}

// of returns the answer of a host, for modification. The caller holds t.mu.
func (t *traffic) of(key string) *hostAnswer {
	h, ok := t.answers[key]
	if !ok {
		h = &hostAnswer{}
		if t.answers == nil {
			t.answers = make(map[string]*hostAnswer)
		}
		t.answers[key] = h
		t.order = append(t.order, key)
	}
	return h
}

// note records the status of a host's answer.
func (t *traffic) note(key string, status int, authorized bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.of(key)
	h.status, h.err, h.challenged = status, nil, status == http.StatusUnauthorized && !authorized
	t.last = key
}

// noteNoAnswer records that a host did not answer a request. The previous answer remains valid, unless it was the
// challenge for this request. A request that ends because its caller has gone says nothing about the host.
func (t *traffic) noteNoAnswer(key string, authorized bool, why error, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.answers[key]
	switch {
	case ok && known.challenged && authorized:
		*known = hostAnswer{err: why, token: known.token}
	case !ok && !ended:
		t.of(key).err = why
		t.last = key
	}
}

// noteToken records the status of the token service for a host, or why it did not answer.
func (t *traffic) noteToken(key, host string, status int, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(key).token = &tokenAnswer{host: host, status: status, err: why}
}

// watch returns a transport that records the answers of a registry host in t. It does not record answers of hosts that
// the registry redirects to. One server can be several hosts of a registry, each with its own path, and refuse access
// under one of them.
func (t *traffic) watch(registry, path string, base http.RoundTripper) http.RoundTripper {
	key := registry + path
	return t.count(roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(req)
		if req.URL.Host != registry || ofRange(req.Context()) {
			return resp, err
		}
		authorized := req.Header.Get("Authorization") != ""
		if err != nil {
			t.noteNoAnswer(key, authorized, err, req.Context().Err() != nil)
			return nil, err
		}
		t.note(key, resp.StatusCode, authorized)
		return t.busy.refuse(resp)
	}))
}

// watchTokens is watch for requests to the token service of a registry host, which may be the same server.
func (t *traffic) watchTokens(registry, path string, base http.RoundTripper) http.RoundTripper {
	return t.count(roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(req)
		if ofRange(req.Context()) {
			return resp, err
		}
		if err != nil {
			t.noteToken(registry+path, req.URL.Host, 0, err)
			return nil, err
		}
		t.noteToken(registry+path, req.URL.Host, resp.StatusCode, nil)
		t.busy.note(resp)
		return resp, nil
	}))
}

// count returns a transport that counts requests and bytes.
func (t *traffic) count(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		flow := bandwidth.Of(req.Context())
		if flow == nil {
			flow = bandwidth.NewFlow(req.Context(), t.limiter)
		}
		var resp *http.Response
		var err error
		t.receive(flow, func() { resp, err = base.RoundTrip(req) })
		if err != nil {
			return nil, err
		}
		resp.Body = &watchedBody{ReadCloser: resp.Body, ctx: req.Context(), traffic: t, flow: flow}
		return resp, nil
	})
}

// receive runs fn, which waits for a registry.
func (t *traffic) receive(flow *bandwidth.Flow, fn func()) {
	t.active.Add(1)
	defer t.active.Add(-1)
	flow.Receive(fn)
}

// hostname returns a host without its path.
func hostname(host string) string {
	name, _, _ := strings.Cut(host, "/")
	return name
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type watchedBody struct {
	io.ReadCloser
	ctx     context.Context
	traffic *traffic
	flow    *bandwidth.Flow
}

// Read implements io.Reader. It returns when the limits of the flow allow it.
func (b *watchedBody) Read(p []byte) (n int, err error) {
	p = b.flow.Chunk(p)
	b.traffic.receive(b.flow, func() { n, err = b.ReadCloser.Read(p) })
	b.traffic.bytes.Add(int64(n))
	b.traffic.throttled.Add(1)
	defer b.traffic.throttled.Add(-1)
	if werr := b.flow.Received(b.ctx, n); werr != nil && err == nil {
		err = werr
	}
	return n, err
}

// stalled returns a channel that is closed when requests have waited for a registry for timeout without progress. It ends
// with stop. The rule is that of containerd's CRI (see package upstream), without the
// time in which the pull waits for a limit or for its unpacker.
func (t *traffic) stalled(timeout time.Duration, stop <-chan struct{}) <-chan struct{} {
	const checks = 10
	stall := make(chan struct{})
	go func() {
		tick := time.NewTicker(max(timeout/checks, time.Millisecond))
		defer tick.Stop()
		seen, since := t.bytes.Load(), time.Now()
		for {
			select {
			case <-stop:
				return
			case now := <-tick.C:
				if b := t.bytes.Load(); b != seen || t.active.Load() == 0 || t.throttled.Load() > 0 {
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
