package registry

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Fault is a fault of one request. The zero value is no fault. The fields that are set apply in their order.
type Fault struct {
	// Hang blocks the response until the channel is closed or the client disconnects. With After > 0 it blocks the body
	// after that many bytes instead.
	Hang <-chan struct{}
	// Drip is the time after which one more byte of the body is sent while Hang blocks it. 0 means that none is sent.
	Drip time.Duration
	// Delay is a pause before the response.
	Delay time.Duration
	// Abort closes the connection without a response.
	Abort bool
	// Status replaces the response of the registry, with Header and Body. 0 means the response of the registry.
	Status int
	Header http.Header
	Body   string
	// HTML responds with status 200 and a web page, as captive portals and login pages do.
	HTML bool
	// Digest replaces the Docker-Content-Digest header. "-" removes it.
	Digest string
	// After is the number of bytes of the body that are sent correctly before Hang, Truncate or Corrupt.
	After int64
	// Truncate closes the connection in the middle of the body.
	Truncate bool
	// Corrupt flips a bit of one byte.
	Corrupt bool
}

// SetFault sets a rule that returns the fault of each request, or nil for no fault. The fault applies before
// authentication. A nil rule removes all faults. The rule may run for several requests concurrently.
func (r *Registry) SetFault(rule func(Request) *Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rule = rule
}

// FaultIf returns a rule that returns a fault for every request for which all conditions hold.
func FaultIf(f Fault, conditions ...func(Request) bool) func(Request) *Fault {
	return func(q Request) *Fault {
		if all(q, conditions) {
			return &f
		}
		return nil
	}
}

// ServeHTTP records the request, applies its fault, checks its credentials and forwards it to the store.
func (r *Registry) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	q := &Request{
		Time: time.Now(), Method: req.Method, Path: req.URL.Path, Query: req.URL.RawQuery,
		Range: req.Header.Get("Range"), Authorized: req.Header.Get("Authorization") != "",
	}
	q.Kind, q.Repository, q.Reference = classify(req)
	r.mu.Lock()
	q.User = r.userOf(req)
	r.seq++
	q.Seq = r.seq
	r.requests = append(r.requests, q)
	rule, snapshot := r.rule, *q
	r.notify()
	r.mu.Unlock()

	w := &response{rw: rw, req: req}
	defer func() {
		r.mu.Lock()
		q.Done, q.Status, q.Bytes = true, w.status, w.sent
		r.notify()
		r.mu.Unlock()
	}()
	if rule != nil {
		if f := rule(snapshot); f != nil {
			w.fault = *f
		}
	}
	f := w.fault
	if f.Hang != nil && f.After == 0 {
		select {
		case <-f.Hang:
		case <-req.Context().Done():
			return
		}
	}
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-req.Context().Done():
			return
		}
	}
	switch {
	case f.Abort:
		panic(http.ErrAbortHandler)
	case f.Status != 0:
		for k, vs := range f.Header {
			w.Header()[http.CanonicalHeaderKey(k)] = vs
		}
		w.WriteHeader(f.Status)
		if req.Method != http.MethodHead {
			_, _ = w.Write([]byte(f.Body))
		}
		return
	case f.HTML:
		const page = "<!DOCTYPE html><html><head><title>Sign in</title></head><body>Sign in to continue</body></html>"
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Length", strconv.Itoa(len(page)))
		w.WriteHeader(http.StatusOK)
		if req.Method != http.MethodHead {
			_, _ = w.Write([]byte(page))
		}
		return
	}
	if !r.authorize(w, req, *q) {
		return
	}
	if q.Kind == Manifest && r.serveRaw(w, req, *q) {
		return
	}
	if q.Kind == Blob && req.Method == http.MethodGet {
		if q.Range != "" && !r.closeRange(w, req, *q) {
			return
		}
		w.Header().Set("Accept-Ranges", "bytes") // the store serves ranges and does not say so
	}
	r.store.ServeHTTP(w, req)
}

// closeRange sets the end of an open range ("bytes=5-"), which a resumed download sends, because the store supports
// only closed ranges. It returns false if it has sent the response.
func (r *Registry) closeRange(w http.ResponseWriter, req *http.Request, q Request) bool {
	start, ok := strings.CutSuffix(q.Range, "-")
	if !ok {
		return true
	}
	h, err := v1.NewHash(q.Reference)
	if err != nil {
		return true
	}
	b, found := r.blobs.get(q.Repository, h)
	if !found {
		return true
	}
	size := b.size()
	from, err := strconv.ParseInt(strings.TrimPrefix(start, "bytes="), 10, 64)
	if err != nil || from >= size {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return false
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, size-1))
	return true
}

func (r *Registry) serveRaw(w http.ResponseWriter, req *http.Request, q Request) bool {
	key := q.Repository + ":" + q.Reference
	if q.ByDigest() {
		key = q.Repository + "@" + q.Reference
	}
	r.mu.Lock()
	m, ok := r.raw[key]
	r.mu.Unlock()
	if !ok || (req.Method != http.MethodGet && req.Method != http.MethodHead) {
		return false
	}
	w.Header().Set("Content-Type", m.MediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(m.Body)))
	w.Header().Set("Docker-Content-Digest", m.Digest().String())
	w.WriteHeader(http.StatusOK)
	if req.Method == http.MethodGet {
		_, _ = w.Write(m.Body)
	}
	return true
}

// response counts the bytes that it sends and applies the faults of a response.
type response struct {
	rw     http.ResponseWriter
	req    *http.Request
	fault  Fault
	status int
	sent   int64
}

func (w *response) Header() http.Header { return w.rw.Header() }

func (w *response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	switch w.fault.Digest {
	case "":
	case "-":
		w.Header().Del("Docker-Content-Digest")
	default:
		w.Header().Set("Docker-Content-Digest", w.fault.Digest)
	}
	w.rw.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	f := w.fault
	left := f.After - w.sent // bytes until the fault
	if (f.Truncate || f.Corrupt || (f.Hang != nil && f.After > 0)) && left >= 0 && left < int64(len(b)) {
		all := len(b)
		if err := w.write(b[:left]); err != nil {
			return 0, err
		}
		b = b[left:]
		if f.Hang != nil && f.After > 0 {
			dripped, err := w.hang(b)
			if err != nil {
				return int(left) + dripped, err
			}
			b = b[dripped:]
		}
		if f.Truncate {
			_ = http.NewResponseController(w.rw).Flush()
			panic(http.ErrAbortHandler)
		}
		if f.Corrupt {
			b = append([]byte{b[0] ^ 1}, b[1:]...)
		}
		return all, w.write(b)
	}
	return len(b), w.write(b)
}

// hang waits until Hang is closed, and returns how many bytes of b it has sent meanwhile, one after each Drip. The last
// byte of b remains.
func (w *response) hang(b []byte) (sent int, err error) {
	var drip <-chan time.Time
	if w.fault.Drip > 0 {
		t := time.NewTicker(w.fault.Drip)
		defer t.Stop()
		drip = t.C
	}
	for {
		_ = http.NewResponseController(w.rw).Flush()
		select {
		case <-w.fault.Hang:
			return sent, nil
		case <-w.req.Context().Done():
			return sent, w.req.Context().Err()
		case <-drip:
			if sent == len(b)-1 {
				continue
			}
			if err := w.write(b[sent : sent+1]); err != nil {
				return sent, err
			}
			sent++
		}
	}
}

// ReadFrom implements [io.ReaderFrom], which the store uses for ranges, with fewer and larger writes than [io.Copy].
func (w *response) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 256<<10))
}

func (w *response) write(b []byte) error {
	n, err := w.rw.Write(b)
	w.sent += int64(n)
	return err
}
