package resolve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	kib   = 1 << 10
	large = 1000*kib + 123
	slow  = 60 * kib // rate of a connection that is the limit
)

// consumer reads a body.
type consumer func(io.Reader) ([]byte, error)

// consume reads pieces of 4 KiB. between, if not nil, is called after each with the number of bytes read.
func consume(between func(int)) consumer {
	return func(r io.Reader) ([]byte, error) {
		var all bytes.Buffer
		for {
			n, err := io.CopyN(&all, struct{ io.Reader }{r}, 4*kib)
			if err == io.EOF || err != nil {
				if err == io.EOF {
					err = nil
				}
				return all.Bytes(), err
			}
			if between != nil && n > 0 {
				between(all.Len())
			}
		}
	}
}

// chunks returns the requests for the bytes from first to end, in chunks.
func chunks(first, end int) (all []string) {
	for ; first < end; first += int(testLargeBlobs.chunk) {
		all = append(all, fmt.Sprintf("GET bytes=%d-%d", first, min(first+int(testLargeBlobs.chunk), end)-1))
	}
	return all
}

// TestLargeBlobRequests checks the exact requests for a blob.
func TestLargeBlobRequests(t *testing.T) {
	const probed = 40 * kib // skipped, measured, and read while the first range is fetched
	one := func(int) []string { return []string{"GET"} }
	for name, c := range map[string]struct {
		size              int // large if zero
		downloads, buffer int
		perConnection     int
		link              int
		plain             bool // the server does not serve ranges
		encoded           bool
		consume           consumer
		want              func(first int) []string // first is the first byte of the first range
		late              bool                     // the first range is after the first measurement
	}{
		"fast":                {downloads: 3, perConnection: 512 * kib, want: one},
		"no limit":            {downloads: 3, want: one},
		"connection is limit": {downloads: 3, perConnection: slow, want: func(first int) []string { return append(one(0), chunks(first, large)...) }},
		"two downloads":       {downloads: 2, perConnection: slow, want: func(first int) []string { return append(one(0), chunks(first, large)...) }},
		"ten downloads":       {downloads: 10, perConnection: slow, want: func(first int) []string { return append(one(0), chunks(first, large)...) }},
		"one download":        {downloads: 1, perConnection: slow, want: one},
		"small blob":          {size: 64 * kib, downloads: 3, perConnection: slow, want: one},
		"not enough left":     {size: 80 * kib, downloads: 3, perConnection: slow, want: one},
		"no ranges":           {downloads: 3, perConnection: slow, plain: true, want: one},
		"content encoding":    {downloads: 3, perConnection: slow, encoded: true, want: one},
		"slow reader":         {downloads: 3, perConnection: slow, consume: consume(func(int) { time.Sleep(100 * time.Millisecond) }), want: one},
		"reader that is slow first": {
			downloads: 3, perConnection: slow, late: true,
			consume: consume(func(n int) {
				if n < 200*kib {
					time.Sleep(100 * time.Millisecond)
				}
			}),
			want: func(first int) []string { return append(one(0), chunks(first, large)...) },
		},
		"reader that pauses": {
			downloads: 3, perConnection: slow,
			consume: consume(func(n int) {
				if n%(100*kib) == 0 {
					time.Sleep(10 * time.Second)
				}
			}),
			want: func(first int) []string { return append(one(0), chunks(first, large)...) },
		},
		"link is limit": {downloads: 3, link: slow, want: func(first int) []string {
			trial := first + (2+6)*16*kib // while the first connection is open, and in the trial
			return slices.Concat(one(0), chunks(first, trial), []string{fmt.Sprintf("GET bytes=%d-", trial)})
		}},
		"link of 1.2 connections": {downloads: 4, link: slow * 6 / 5, perConnection: slow, want: func(first int) []string {
			trial := first + (3+8)*16*kib
			return slices.Concat(one(0), chunks(first, trial), []string{fmt.Sprintf("GET bytes=%d-", trial)})
		}},
		// containerd's own requests.
		"chunk size configured": {downloads: 3, buffer: 256 * kib, perConnection: slow, want: func(int) []string {
			return []string{"GET bytes=0-", "GET bytes=262144-", "GET bytes=524288-", "GET bytes=786432-"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newBlobServer()
				s.perConnection, s.link = c.perConnection, &pace{rate: c.link}
				if c.size == 0 {
					c.size = large
				}
				if c.consume == nil {
					c.consume = consume(nil)
				}
				if c.plain || c.encoded {
					s.answer = func(w http.ResponseWriter, req *http.Request) bool {
						if c.encoded {
							w.Header().Set("Content-Encoding", "identity, identity")
							w.Header().Set("Accept-Ranges", "bytes")
						}
						w.Header().Set("Content-Length", fmt.Sprint(len(s.content(req))))
						_, _ = w.Write(s.content(req))
						return true
					}
				}
				desc := s.add(c.size)
				r, end := s.resolver(t)
				defer end()
				options, limiter := limitsOf(c.downloads, c.buffer)
				session := r.Session(named(t, ref), Credential{})
				session.SetOptions(options...)
				fetchAll(t, s, session, desc, c.consume)
				got := s.seen()
				first := 0
				if i := slices.IndexFunc(got, func(r string) bool { return firstOf(r) > 0 }); i >= 0 {
					first = firstOf(got[i])
				}
				if want := c.want(first); !slices.Equal(got, want) {
					t.Errorf("got requests\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				if late := first > probed+8*kib; first > 0 && c.buffer == 0 && (first < probed || late != c.late) {
					t.Errorf("the first range is from %d, late: want %t", first, c.late)
				}
				if s.max > c.downloads || len(s.open) != 0 {
					t.Errorf("got %d concurrent requests of at most %d, and %d open ones at the end", s.max, c.downloads, len(s.open))
				}
				if !limiter.TryAcquire(int64(c.downloads)) {
					t.Error("a slot of the limiter is not free at the end")
				}
			})
		})
	}
}

// fetchAll fetches a blob and checks its content.
func fetchAll(t *testing.T, s *blobServer, session *Session, desc ocispec.Descriptor, read consumer) {
	t.Helper()
	rc := openBlob(t, quiet(t), session, desc)
	defer func() {
		if err := rc.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}()
	got, err := read(rc)
	if err != nil || !bytes.Equal(got, s.blob(desc.Digest)) {
		t.Errorf("got %d other bytes, %v, want %d", len(got), err, desc.Size)
	}
}

func openBlob(t *testing.T, ctx context.Context, session *Session, desc ocispec.Descriptor) io.ReadCloser {
	t.Helper()
	f, err := session.Fetcher(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return fetchBody(t, ctx, f, desc)
}

func fetchBody(t *testing.T, ctx context.Context, f remotes.Fetcher, desc ocispec.Descriptor) io.ReadCloser {
	t.Helper()
	rc, err := f.Fetch(ctx, desc)
	if err != nil {
		t.Fatal(err)
	}
	return rc
}

// inBubble runs a test with a server of slow connections and a session with a limit of downloads.
func inBubble(t *testing.T, downloads int, run func(*testing.T, *blobServer, *Session)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newBlobServer()
		s.perConnection = slow
		r, end := s.resolver(t)
		defer end()
		options, limiter := limitsOf(downloads, 0)
		session := r.Session(named(t, ref), Credential{Username: "u", Password: "p"})
		session.SetOptions(options...)
		run(t, s, session)
		synctest.Wait()
		if len(s.open) != 0 || s.max > downloads || !limiter.TryAcquire(int64(downloads)) {
			t.Errorf("got %d concurrent requests of at most %d, and %d open ones at the end", s.max, downloads, len(s.open))
		}
	})
}

// TestLargeBlobFaster checks that several connections take the share of the time that they should.
func TestLargeBlobFaster(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
		start := time.Now()
		fetchAll(t, s, session, s.add(large), consume(nil))
		if got, one := time.Since(start).Seconds(), float64(large)/slow; got > one*0.4 {
			t.Errorf("took %.1fs, want at most 0.4 of the %.1fs of one connection", got, one)
		}
	})
}

// TestLargeBlobNotFaster checks that a session does not try several connections again if they were not faster.
func TestLargeBlobNotFaster(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
		s.link = &pace{rate: slow}
		fetchAll(t, s, session, s.add(large), consume(nil))
		s.seen()
		fetchAll(t, s, session, s.add(large), consume(nil))
		if got := s.seen(); !slices.Equal(got, []string{"GET"}) {
			t.Errorf("the next blob: got requests %q, want one", got)
		}
	})
}

// TestLargeBlobsAtOnce fetches more large blobs at once than the limit allows. Each gets a turn, the limit holds, and
// several connections are used only when no other blob waits.
func TestLargeBlobsAtOnce(t *testing.T) {
	for _, downloads := range []int{2, 3} {
		for _, blobs := range []int{2, 3, 7} {
			t.Run(fmt.Sprintf("%d of %d", downloads, blobs), func(t *testing.T) {
				inBubble(t, downloads, func(t *testing.T, s *blobServer, session *Session) {
					start := time.Now()
					var all sync.WaitGroup
					for i := range blobs {
						desc := s.add(large)
						all.Go(func() {
							time.Sleep(time.Duration(i) * time.Second)
							fetchAll(t, s, session, desc, consume(nil))
						})
					}
					all.Wait()
					best := float64(blobs*large) / float64(downloads*slow)
					if got := time.Since(start).Seconds(); got > best*1.5+2 {
						t.Errorf("took %.1fs, want about %.1fs", got, best)
					}
				})
			})
		}
	}
}

// TestLargeBlobGivesWay checks that a blob in spans leaves its slots to other blobs after a span, except one.
func TestLargeBlobGivesWay(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
		big := s.add(large)
		var (
			all    sync.WaitGroup
			ended  atomic.Int32
			before int32
		)
		all.Go(func() {
			fetchAll(t, s, session, big, consume(nil))
			before = ended.Load()
		})
		time.Sleep(time.Second) // the first span has begun
		for range 60 {
			desc := s.add(50 * kib)
			all.Go(func() {
				fetchAll(t, s, session, desc, consume(nil))
				ended.Add(1)
			})
		}
		all.Wait()
		// The large one has one connection of three while others wait.
		if before < 25 || before > 45 {
			t.Errorf("%d of 60 small blobs ended before the large one, want some", before)
		}
	})
}

// TestLargeBlobInterrupted interrupts connections within chunks. The download resumes.
func TestLargeBlobInterrupted(t *testing.T) {
	for _, which := range []int32{1, 2, 3, 5, 9} {
		t.Run(fmt.Sprint(which), func(t *testing.T) {
			inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
				var ranges atomic.Int32
				s.answer = func(w http.ResponseWriter, req *http.Request) bool {
					if req.Header.Get("Range") == "" || ranges.Add(1) != which {
						return false
					}
					http.ServeContent(&cutWriter{ResponseWriter: w, left: 5 * kib}, req, "", time.Time{}, bytes.NewReader(s.content(req)))
					panic(http.ErrAbortHandler)
				}
				fetchAll(t, s, session, s.add(large), consume(nil))
			})
		})
	}
}

// cutWriter writes the first bytes of a body.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(b []byte) (int, error) {
	if len(b) > w.left {
		_, _ = w.ResponseWriter.Write(b[:w.left])
		w.left = 0
		return 0, io.ErrShortWrite
	}
	w.left -= len(b)
	return w.ResponseWriter.Write(b)
}

// TestLargeBlobChallenge lets a token expire during the chunks.
func TestLargeBlobChallenge(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
		var ranges, challenges atomic.Int32
		s.answer = func(w http.ResponseWriter, req *http.Request) bool {
			if req.Header.Get("Range") == "" || ranges.Add(1) < 5 || req.Header.Get("Authorization") != "" {
				return false
			}
			challenges.Add(1)
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		fetchAll(t, s, session, s.add(large), consume(nil))
		if got := s.seen(); challenges.Load() == 0 || slices.ContainsFunc(got, func(r string) bool { return strings.HasSuffix(r, "-") }) {
			t.Errorf("got %d challenges and requests %q, want chunks only", challenges.Load(), got)
		}
	})
}

// TestLargeBlobRedirect checks the requests if the registry redirects to a blob store.
func TestLargeBlobRedirect(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
		s.answer = func(w http.ResponseWriter, req *http.Request) bool {
			if strings.HasPrefix(req.URL.Path, "/store/") {
				return false
			}
			http.Redirect(w, req, "http://store.example/store"+req.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		fetchAll(t, s, session, s.add(large), consume(nil))
		got := s.seen()
		slices.SortFunc(got, func(a, b string) int { return firstOf(a) - firstOf(b) })
		var want []string
		for _, r := range append([]string{"GET"}, chunks(firstOf(got[2]), large)...) {
			want = append(want, r, r)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got requests\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// TestLargeBlobCanceled cancels a fetch in every phase, and closes one.
func TestLargeBlobCanceled(t *testing.T) {
	for _, after := range []int{0, 10 * kib, 30 * kib, 50 * kib, 300 * kib, large - 1} {
		for _, link := range []int{0, slow} {
			for _, cancels := range []bool{true, false} {
				t.Run(fmt.Sprintf("after %d link=%d cancel=%t", after, link, cancels), func(t *testing.T) {
					inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
						s.link = &pace{rate: link}
						ctx, cancel := context.WithCancel(quiet(t))
						defer cancel()
						rc := openBlob(t, ctx, session, s.add(large))
						if _, err := io.CopyN(io.Discard, rc, int64(after)); err != nil {
							t.Fatal(err)
						}
						if cancels {
							time.AfterFunc(10*time.Millisecond, cancel)
							if _, err := io.Copy(io.Discard, rc); after < large-1 && !errors.Is(err, context.Canceled) {
								t.Errorf("got %v, want context.Canceled", err)
							}
						}
						start := time.Now()
						if err := rc.Close(); err != nil || time.Since(start) != 0 {
							t.Errorf("Close: %v after %s, want at once", err, time.Since(start))
						}
						if n, err := rc.Read(make([]byte, 1)); n != 0 || err == nil {
							t.Errorf("Read after Close: got %d, %v", n, err)
						}
					})
				})
			}
		}
	}
}

// TestLargeBlobStalled checks that a registry that stops in the middle of the chunks is detected, and a reader that
// stops is not.
func TestLargeBlobStalled(t *testing.T) {
	const timeout = time.Minute
	inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		stalled := session.Stalled(ctx, timeout)
		rc := openBlob(t, ctx, session, s.add(large))
		if _, err := io.CopyN(io.Discard, rc, 300*kib); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * timeout) // the chunks are read, and no request is open
		select {
		case <-stalled:
			t.Error("stalled while nothing was requested")
		default:
		}
		s.mu.Lock()
		s.answer = func(_ http.ResponseWriter, req *http.Request) bool {
			<-req.Context().Done()
			return true
		}
		s.mu.Unlock()
		go func() {
			<-stalled
			cancel()
		}()
		start := time.Now()
		if _, err := io.Copy(io.Discard, rc); !errors.Is(err, context.Canceled) || time.Since(start) < timeout*9/10 {
			t.Errorf("got %v after %s, want context.Canceled after about the timeout", err, time.Since(start))
		}
		_ = rc.Close()
	})
}

// TestLargeBlobSeeks checks that Seek resumes in every phase.
func TestLargeBlobSeeks(t *testing.T) {
	for _, after := range []int{0, 10 * kib, 50 * kib, 300 * kib, large} {
		for _, to := range []int{0, 100, 500 * kib, large} {
			t.Run(fmt.Sprintf("%d to %d", after, to), func(t *testing.T) {
				inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
					desc := s.add(large)
					rc := openBlob(t, quiet(t), session, desc)
					defer func() { _ = rc.Close() }()
					if _, err := io.CopyN(io.Discard, rc, int64(after)); err != nil {
						t.Fatal(err)
					}
					if n, err := rc.(io.Seeker).Seek(int64(to-after), io.SeekCurrent); n != int64(to) || err != nil {
						t.Fatalf("Seek: got %d, %v, want %d", n, err, to)
					}
					if got, err := consume(nil)(rc); err != nil || !bytes.Equal(got, s.blob(desc.Digest)[to:]) {
						t.Errorf("got %d other bytes, %v, want %d", len(got), err, large-to)
					}
				})
			})
		}
	}
}

// TestLargeBlobSeekErrors checks that Seek rejects what [io.Seeker] does not allow.
func TestLargeBlobSeekErrors(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *blobServer, session *Session) {
		rc := openBlob(t, quiet(t), session, s.add(large))
		defer func() { _ = rc.Close() }()
		seeker := rc.(io.Seeker)
		if n, err := seeker.Seek(-100, io.SeekEnd); n != large-100 || err != nil {
			t.Errorf("from the end: got %d, %v, want %d", n, err, large-100)
		}
		if _, err := seeker.Seek(-1, io.SeekStart); !errdefs.IsInvalidArgument(err) {
			t.Errorf("negative: got %v, want an InvalidArgument error", err)
		}
		if _, err := seeker.Seek(0, 3); !errdefs.IsInvalidArgument(err) {
			t.Errorf("whence: got %v, want an InvalidArgument error", err)
		}
		_ = rc.Close()
		if _, err := seeker.Seek(0, io.SeekStart); !errdefs.IsUnavailable(err) {
			t.Errorf("closed: got %v, want an Unavailable error", err)
		}
	})
}
