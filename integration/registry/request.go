package registry

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Kind is what a request is about.
type Kind string

// The kinds of requests.
const (
	Ping      Kind = "ping" // GET /v2/
	Token     Kind = "token"
	Manifest  Kind = "manifest"
	Blob      Kind = "blob"
	Upload    Kind = "upload"
	Tags      Kind = "tags"
	Referrers Kind = "referrers"
	Other     Kind = "other"
)

// Request is one request that the registry got over the network.
type Request struct {
	Seq        int // counts from 1, also over Reset
	Time       time.Time
	Method     string
	Path       string
	Query      string
	Kind       Kind
	Repository string
	// Reference is the digest or tag asked for.
	Reference string
	Range     string
	// User is who the Authorization header names, whether or not that is true: a Basic user, or the user a bearer token was
	// given to. Empty means anonymous.
	User string
	// Authorized says that an Authorization header was sent.
	Authorized bool
	// Done says that the answer is complete; what follows is set then.
	Done   bool
	Status int
	Bytes  int64 // of the body sent
}

// String is the request on one line.
func (q Request) String() string {
	s := fmt.Sprintf("%d %s %s", q.Seq, q.Method, q.Path)
	if q.Range != "" {
		s += " [" + q.Range + "]"
	}
	if q.User != "" {
		s += " as " + q.User
	}
	if !q.Done {
		return s + " → …"
	}
	return fmt.Sprintf("%s → %d, %d bytes", s, q.Status, q.Bytes)
}

// ByDigest says that the request asks for a digest, not for a tag.
func (q Request) ByDigest() bool { return strings.Contains(q.Reference, ":") }

// Is returns a condition for [Registry.Count]: method and kind; an empty one matches all.
func Is(method string, kind Kind) func(Request) bool {
	return func(q Request) bool { return (method == "" || q.Method == method) && (kind == "" || q.Kind == kind) }
}

// In returns a condition: the repository.
func In(repository string) func(Request) bool {
	return func(q Request) bool { return q.Repository == repository }
}

// Later returns a condition: the request has begun after this call.
func (r *Registry) Later() func(Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.seq
	return func(q Request) bool { return q.Seq > now }
}

// Requests returns the requests since the start or the last [Registry.Reset], in the order of their beginning, those still running included.
func (r *Registry) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Request, len(r.requests))
	for i, q := range r.requests {
		out[i] = *q
	}
	return out
}

// Count counts the requests for which all conditions hold.
func (r *Registry) Count(conditions ...func(Request) bool) int {
	n := 0
	for _, q := range r.Requests() {
		if all(q, conditions) {
			n++
		}
	}
	return n
}

// Reset forgets the requests that are answered; those still running stay.
func (r *Registry) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = slices.DeleteFunc(r.requests, func(q *Request) bool { return q.Done })
}

// Wait returns the first request, also one still running, for which all conditions hold, and waits for it where there is none yet.
func (r *Registry) Wait(ctx context.Context, conditions ...func(Request) bool) (Request, error) {
	for {
		r.mu.Lock()
		changed := r.changed
		for _, q := range r.requests {
			if all(*q, conditions) {
				defer r.mu.Unlock()
				return *q, nil
			}
		}
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Request{}, fmt.Errorf("waiting for a request: %w; there were:\n%s", context.Cause(ctx), r.Dump())
		}
	}
}

// Dump is all requests, one per line, for messages of failing tests.
func (r *Registry) Dump() string {
	var b strings.Builder
	for _, q := range r.Requests() {
		fmt.Fprintln(&b, q)
	}
	return b.String()
}

func all(q Request, conditions []func(Request) bool) bool {
	for _, c := range conditions {
		if !c(q) {
			return false
		}
	}
	return true
}

// notify wakes those who wait for a request. The lock is held.
func (r *Registry) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// classify says what a request is about.
func classify(req *http.Request) (kind Kind, repository, reference string) {
	path := req.URL.Path
	if path == tokenPath {
		return Token, "", ""
	}
	rest, ok := strings.CutPrefix(path, "/v2/")
	if !ok {
		if path == "/v2" {
			return Ping, "", ""
		}
		return Other, "", ""
	}
	if rest == "" {
		return Ping, "", ""
	}
	for _, k := range []struct {
		infix string
		kind  Kind
	}{{"/manifests/", Manifest}, {"/blobs/uploads", Upload}, {"/blobs/", Blob}, {"/tags/", Tags}, {"/referrers/", Referrers}} {
		if i := strings.LastIndex(rest, k.infix); i > 0 {
			return k.kind, rest[:i], strings.TrimPrefix(rest[i+len(k.infix):], "/")
		}
	}
	return Other, "", ""
}
