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

	mu     sync.Mutex
	status map[string]int // host and path -> status of its last answer; 0 where there was none
	asked  []string       // the same, in the order they were first asked
}

// denied gives the first host whose last word was 401 or 403. containerd's
// resolver goes on to the next host and returns one error for all of them, in
// which that answer may be lost.
func (t *traffic) denied() (host string, status int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.asked {
		if s := t.status[h]; s == http.StatusUnauthorized || s == http.StatusForbidden {
			return hostname(h), s, true
		}
	}
	return "", 0, false
}

// answered gives the last host that answered with success.
func (t *traffic) answered() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.asked) - 1; i >= 0; i-- {
		if s := t.status[t.asked[i]]; s >= 200 && s < 300 {
			return hostname(t.asked[i])
		}
	}
	return ""
}

// statuses gives the last answer of each host in the order they were asked: 0
// for one that could not be reached.
func (t *traffic) statuses() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]int, len(t.asked))
	for i, h := range t.asked {
		all[i] = t.status[h]
	}
	return all
}

func (t *traffic) note(host string, status int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status == nil {
		t.status = make(map[string]int)
	}
	if _, ok := t.status[host]; !ok {
		t.asked = append(t.asked, host)
	}
	t.status[host] = status
}

// watch is a transport whose requests are seen by t. Only the registry hosts
// themselves are noted with their status: what they redirect to, and where
// tokens come from, is somebody else. A server can be several of a registry's
// hosts, each with a path of its own, and refuse under one of them.
func (t *traffic) watch(registry, path string, base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		t.active.Add(1)
		resp, err := base.RoundTrip(req)
		if err != nil {
			t.active.Add(-1)
			if req.URL.Host == registry && req.Context().Err() == nil {
				t.noteSilence(registry + path)
			}
			return nil, err
		}
		if req.URL.Host == registry {
			t.note(registry+path, resp.StatusCode)
		}
		resp.Body = &watchedBody{ReadCloser: resp.Body, traffic: t}
		return resp, nil
	})
}

// noteSilence notes that a host did not answer. What it said before counts.
func (t *traffic) noteSilence(host string) {
	t.mu.Lock()
	_, answered := t.status[host]
	t.mu.Unlock()
	if !answered {
		t.note(host, 0)
	}
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
