package resolve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// rangeFault is what a host answers to a request with a range, although it says that it serves ranges.
type rangeFault func(w http.ResponseWriter, req *http.Request, content []byte, first, last int)

func statusFault(code int) rangeFault {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte, _, _ int) { w.WriteHeader(code) }
}

// partial returns a fault with status 206.
func partial(headers func(first, last, size int) (contentType, contentRange string, length int), body func(content []byte, first, last int) []byte) rangeFault {
	return func(w http.ResponseWriter, _ *http.Request, content []byte, first, last int) {
		contentType, contentRange, length := headers(first, last, len(content))
		w.Header().Set("Content-Type", contentType)
		if contentRange != "" {
			w.Header().Set("Content-Range", contentRange)
		}
		w.Header().Set("Content-Length", fmt.Sprint(length))
		w.WriteHeader(http.StatusPartialContent)
		b := body(content, first, last)
		_, _ = w.Write(b)
		if len(b) < length {
			panic(http.ErrAbortHandler)
		}
	}
}

func rightHeaders(first, last, size int) (string, string, int) {
	return "application/octet-stream", fmt.Sprintf("bytes %d-%d/%d", first, last, size), last - first + 1
}

func wrongHeaders(first, last, size int) func(int, int, int) (string, string, int) {
	return func(f, l, s int) (string, string, int) { return rightHeaders(f+first, l+last, s+size) }
}

func cutOut(content []byte, first, last int) []byte { return content[first : last+1] }

// rangeFaults are the answers that were seen.
func rangeFaults() map[string]rangeFault {
	return map[string]rangeFault{
		"400": statusFault(400),
		"403": statusFault(403),
		"404": statusFault(404),
		"416": statusFault(416),
		"429": statusFault(429),
		"500": statusFault(500),
		"503": statusFault(503),
		"200": func(w http.ResponseWriter, _ *http.Request, content []byte, _, _ int) {
			w.Header().Set("Accept-Ranges", "bytes")
			_, _ = w.Write(content)
		},
		"206 whole blob": partial(func(_, _, size int) (string, string, int) { return rightHeaders(0, size-1, size) },
			func(content []byte, _, _ int) []byte { return content }),
		"206 whole blob as the range": partial(func(first, last, size int) (string, string, int) {
			_, contentRange, _ := rightHeaders(first, last, size)
			return "", contentRange, size
		}, func(content []byte, _, _ int) []byte { return content }),
		"206 one byte later": partial(wrongHeaders(1, 1, 0), func(content []byte, first, last int) []byte {
			return append(content[first+1:last+1:last+1], 0)
		}),
		"206 one byte less":        partial(wrongHeaders(0, -1, 0), func(content []byte, first, last int) []byte { return content[first:last] }),
		"206 of another blob":      partial(wrongHeaders(0, 0, 1), cutOut),
		"206 without the range":    partial(func(f, l, s int) (string, string, int) { _, _, n := rightHeaders(f, l, s); return "", "", n }, cutOut),
		"206 truncated":            partial(rightHeaders, func(content []byte, first, last int) []byte { return content[first : (first+last)/2] }),
		"206 truncated to nothing": partial(rightHeaders, func([]byte, int, int) []byte { return nil }),
		"206 multipart": partial(func(first, last, _ int) (string, string, int) {
			return "multipart/byteranges; boundary=b", "", last - first + 1 + len(multipartHead)
		}, func(content []byte, first, last int) []byte {
			return append([]byte(multipartHead), cutOut(content, first, last)...)
		}),
		"no answer": func(http.ResponseWriter, *http.Request, []byte, int, int) { panic(http.ErrAbortHandler) },
	}
}

const multipartHead = "\r\n--b\r\nContent-Type: application/octet-stream\r\n\r\n"

// fail answers each request with a range with a fault, except the first ones.
func (s *blobServer) fail(fault rangeFault, after int32) {
	var ranges atomic.Int32
	s.answer = func(w http.ResponseWriter, req *http.Request) bool {
		var first, last int
		header := req.Header.Get("Range")
		if header == "" || ranges.Add(1) <= after {
			return false
		}
		content := s.content(req)
		if n, _ := fmt.Sscanf(header, "bytes=%d-%d", &first, &last); n == 1 {
			last = len(content) - 1
		}
		fault(w, req, content, first, last)
		return true
	}
}

// inSessions is inBubble with sessions of one resolver.
func inSessions(t *testing.T, run func(t *testing.T, s *blobServer, session func() *Session)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newBlobServer()
		s.perConnection = slow
		r, end := s.resolver(t)
		defer end()
		options, limiter := limitsOf(3, 0)
		run(t, s, func() *Session {
			session := r.Session(named(t, ref), Credential{})
			session.SetOptions(options...)
			return session
		})
		synctest.Wait()
		if len(s.open) != 0 || s.max > 3 || !limiter.TryAcquire(3) {
			t.Errorf("got %d concurrent requests of at most 3, and %d open ones at the end", s.max, len(s.open))
		}
	})
}

// kinds counts requests: for the whole blob, for ranges, and for its rest.
func kinds(requests []string) (whole, ranges, rest int) {
	for _, r := range requests {
		switch {
		case r == "GET":
			whole++
		case strings.HasSuffix(r, "-"):
			rest++
		default:
			ranges++
		}
	}
	return whole, ranges, rest
}

func wantKinds(t *testing.T, got []string, whole, ranges, rest int) {
	t.Helper()
	if w, r, o := kinds(got); w != whole || r != ranges || o != rest {
		t.Errorf("got %d requests for the blob, %d for ranges and %d for its rest, want %d, %d and %d\n%s",
			w, r, o, whole, ranges, rest, strings.Join(got, "\n"))
	}
}

// TestFirstRangeFails pulls from a host that says that it serves ranges and does not. The first connection has the blob:
// the range costs one request. A day long, no other session asks that host for ranges.
func TestFirstRangeFails(t *testing.T) {
	for name, fault := range rangeFaults() {
		t.Run(name, func(t *testing.T) {
			inSessions(t, func(t *testing.T, s *blobServer, session func() *Session) {
				s.fail(fault, 0)
				fetchAll(t, s, session(), s.add(large), consume(nil))
				ranges := 1
				if name == "206 truncated" {
					ranges = 2 // its headers are right
				}
				wantKinds(t, s.seen(), 1, ranges, 0)
				time.Sleep(originsMaxAge - time.Hour)
				fetchAll(t, s, session(), s.add(large), consume(nil))
				wantKinds(t, s.seen(), 1, 0, 0)
				time.Sleep(2 * time.Hour)
				s.answer = nil
				fetchAll(t, s, session(), s.add(large), consume(nil))
				if _, ranges, _ := kinds(s.seen()); ranges == 0 {
					t.Error("the host is not asked for ranges after a day")
				}
			})
		})
	}
}

// TestSecondRangeFails lets the third request fail. The first connection is still open, and has the blob.
func TestSecondRangeFails(t *testing.T) {
	for _, code := range []int{429, 403} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			inSessions(t, func(t *testing.T, s *blobServer, session func() *Session) {
				s.fail(statusFault(code), 1)
				fetchAll(t, s, session(), s.add(large), consume(nil))
				wantKinds(t, s.seen(), 1, 2, 0)
				fetchAll(t, s, session(), s.add(large), consume(nil))
				wantKinds(t, s.seen(), 1, 0, 0)
			})
		})
	}
}

// TestOneConnectionOnly pulls from a host that answers 503 while another connection to the blob is open, as nginx does with
// limit_conn.
func TestOneConnectionOnly(t *testing.T) {
	inSessions(t, func(t *testing.T, s *blobServer, session func() *Session) {
		var open atomic.Int32
		s.answer = func(w http.ResponseWriter, req *http.Request) bool {
			defer open.Add(-1)
			if open.Add(1) > 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(s.content(req)))
			return true
		}
		fetchAll(t, s, session(), s.add(large), consume(nil))
		wantKinds(t, s.seen(), 1, 1, 0)
		fetchAll(t, s, session(), s.add(large), consume(nil))
		wantKinds(t, s.seen(), 1, 0, 0)
	})
}

// TestLaterRangeFails lets ranges fail after the first connection is closed. A request without a range has the rest.
func TestLaterRangeFails(t *testing.T) {
	const after = 8
	for name, fault := range rangeFaults() {
		t.Run(name, func(t *testing.T) {
			inSessions(t, func(t *testing.T, s *blobServer, session func() *Session) {
				s.fail(fault, after)
				fetchAll(t, s, session(), s.add(large), consume(nil))
				got := s.seen()
				whole, ranges, rest := kinds(got)
				// The failure says nothing about ranges if the host is busy or does not answer: the rest is requested first.
				if mayRest := slices.Contains([]string{"429", "503", "no answer", "206 truncated", "206 truncated to nothing"}, name); whole != 2 || rest > 0 && !mayRest {
					t.Errorf("got %d requests for the blob and %d for its rest, want 2 and none (at most one after: %t)\n%s", whole, rest, mayRest, strings.Join(got, "\n"))
				}
				if ranges > after+3 && !strings.HasPrefix(name, "206 truncated") && name != "no answer" { // containerd resumes these
					t.Errorf("got %d ranges, %d of them good, want one for each connection", ranges, after)
				}
				if status := name[:3]; status != "no " && !strings.HasPrefix(name, "206 truncated") {
					fetchAll(t, s, session(), s.add(large), consume(nil))
					wantKinds(t, s.seen(), 1, 0, 0)
				}
			})
		})
	}
}

// TestCorruptRanges pulls from a host whose ranges have wrong bytes. When the digest is found to be wrong, the blob is
// fetched again without ranges, and the host is not asked for ranges again.
func TestCorruptRanges(t *testing.T) {
	inSessions(t, func(t *testing.T, s *blobServer, session func() *Session) {
		s.fail(partial(rightHeaders, func(content []byte, first, last int) []byte { return make([]byte, last-first+1) }), 0)
		desc, pull := s.add(large), session()
		rc := openBlob(t, quiet(t), pull, desc)
		got, err := consume(nil)(rc)
		if err != nil || len(got) != large || bytes.Equal(got, s.blob(desc.Digest)) {
			t.Fatalf("got %d bytes, %v, want %d other bytes", len(got), err, large)
		}
		if err := rc.Close(); err != nil {
			t.Error(err)
		}
		s.seen()
		if !pull.Otherwise(desc.Digest) {
			t.Fatal("there is no other way to fetch the blob")
		}
		fetchAll(t, s, pull, desc, consume(nil))
		wantKinds(t, s.seen(), 1, 0, 0)
		if pull.Otherwise(desc.Digest) {
			t.Error("there is another way after the last one")
		}
		fetchAll(t, s, session(), s.add(large), consume(nil))
		wantKinds(t, s.seen(), 1, 0, 0)
	})
}

// TestBusyHost lets a host answer 429 or 503 to all requests for a time, after ranges have begun. Each request waits as
// long as the host wants.
func TestBusyHost(t *testing.T) {
	for _, code := range []int{429, 503} {
		for _, header := range []string{"", "7", "date"} {
			t.Run(fmt.Sprint(code, " ", header), func(t *testing.T) {
				inSessions(t, func(t *testing.T, s *blobServer, session func() *Session) {
					var requests, busy atomic.Int32
					var last time.Time
					s.answer = func(w http.ResponseWriter, req *http.Request) bool {
						if requests.Add(1) <= 8 || busy.Load() >= 5 {
							return false
						}
						if now := time.Now(); busy.Add(1) > 3 && header != "" && now.Sub(last) < 6*time.Second {
							t.Errorf("a request after %s", now.Sub(last))
						}
						last = time.Now()
						switch header {
						case "7":
							w.Header().Set("Retry-After", "7")
						case "date":
							w.Header().Set("Retry-After", time.Now().Add(7*time.Second).UTC().Format(http.TimeFormat))
						}
						w.WriteHeader(code)
						return true
					}
					fetchAll(t, s, session(), s.add(large), consume(nil))
					if got := busy.Load(); got != 5 {
						t.Errorf("got %d requests while the host was busy, want 5\n%s", got, strings.Join(s.seen(), "\n"))
					}
				})
			})
		}
	}
}

// TestRangesFailedForGood lets all requests fail after ranges have begun. The error names the request that failed.
func TestRangesFailedForGood(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		reason imagepin.Reason
		class  error
	}{
		"403": {403, imagepin.PullAccessDenied, errdefs.ErrPermissionDenied},
		"429": {429, imagepin.CannotPullImage, errdefs.ErrUnavailable},
		"500": {500, imagepin.CannotPullImage, errdefs.ErrUnavailable},
		"503": {503, imagepin.CannotPullImage, errdefs.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			inSessions(t, func(t *testing.T, s *blobServer, session func() *Session) {
				var requests atomic.Int32
				s.answer = func(w http.ResponseWriter, _ *http.Request) bool {
					if requests.Add(1) <= 8 {
						return false
					}
					w.WriteHeader(c.status)
					return true
				}
				desc := s.add(large)
				rc := openBlob(t, quiet(t), session(), desc)
				defer func() { _ = rc.Close() }()
				_, err := io.Copy(io.Discard, rc)
				checkError(t, err, c.reason, c.class)
				want := fmt.Sprintf("GET request to http://blobs.example/v2/team/app/blobs/%s %d", desc.Digest, c.status)
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			})
		})
	}
}

// TestRetryAfterTooLong does not wait for a host that wants an hour.
func TestRetryAfterTooLong(t *testing.T) {
	inSessions(t, func(t *testing.T, s *blobServer, session func() *Session) {
		var requests atomic.Int32
		s.answer = func(w http.ResponseWriter, _ *http.Request) bool {
			if requests.Add(1) <= 8 {
				return false
			}
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		start := time.Now()
		rc := openBlob(t, quiet(t), session(), s.add(large))
		defer func() { _ = rc.Close() }()
		_, err := io.Copy(io.Discard, rc)
		var e *imagepin.Error
		if !errors.As(err, &e) || e.Class != errdefs.ErrUnavailable || time.Since(start) > time.Minute {
			t.Errorf("got %v after %s", err, time.Since(start))
		}
	})
}

// TestOrigins checks that servers are distinguished by scheme, host and port, and that their number is bounded.
func TestOrigins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o origins
		o.add("https://a:443")
		for i := range maxOrigins {
			if !o.has("https://a:443") || o.has("http://a:443") || o.has("https://a:8443") {
				t.Fatalf("after %d others: %v", i, o.since)
			}
			time.Sleep(time.Second)
			o.add(fmt.Sprintf("https://host%d:443", i))
		}
		if o.has("https://a:443") || len(o.since) != maxOrigins {
			t.Errorf("%d servers are remembered, the oldest one: %t", len(o.since), o.has("https://a:443"))
		}
	})
}
