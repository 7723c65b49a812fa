package registry

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Kind is the kind of a request.
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
	Seq        int // counts from 1; Reset does not change the count
	Time       time.Time
	Method     string
	Path       string
	Query      string
	Kind       Kind
	Repository string
	// Reference is the requested digest or tag.
	Reference string
	Range     string
	// User is the user in the Authorization header, even if the credential is wrong: a Basic user, or the user of a
	// bearer token. Empty means anonymous.
	User string
	// Authorized reports whether the request has an Authorization header.
	Authorized bool
	// Done reports whether the response is complete. The fields below are set then.
	Done   bool
	Status int
	Bytes  int64 // of the response body
}

// String returns the request on one line.
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

// ByDigest reports whether the reference is a digest.
func (q Request) ByDigest() bool { return strings.Contains(q.Reference, ":") }

// Is returns a condition that matches a method and a kind. An empty argument matches all.
func Is(method string, kind Kind) func(Request) bool {
	return func(q Request) bool { return (method == "" || q.Method == method) && (kind == "" || q.Kind == kind) }
}

// In returns a condition that matches a repository.
func In(repository string) func(Request) bool {
	return func(q Request) bool { return q.Repository == repository }
}

// Later returns a condition that matches requests that begin after this call.
func (r *Registry) Later() func(Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.seq
	return func(q Request) bool { return q.Seq > now }
}

// Requests returns the requests since the start or the last [Registry.Reset], including those that are not done, in the
// order in which they began.
func (r *Registry) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Request, len(r.requests))
	for i, q := range r.requests {
		out[i] = *q
	}
	return out
}

// Count returns the number of requests for which all conditions hold.
func (r *Registry) Count(conditions ...func(Request) bool) int {
	n := 0
	for _, q := range r.Requests() {
		if all(q, conditions) {
			n++
		}
	}
	return n
}

// Reset removes the requests that are done from the record.
func (r *Registry) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = slices.DeleteFunc(r.requests, func(q *Request) bool { return q.Done })
}

// Wait returns the first request for which all conditions hold, even if it is not done. It waits until there is one.
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
			return Request{}, fmt.Errorf("waiting for a request: %w; got requests:\n%s", context.Cause(ctx), r.Dump())
		}
	}
}

// Dump returns all requests, one per line, for failure messages.
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

// notify wakes the callers that wait for a request. The caller holds the lock.
func (r *Registry) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// classify returns the kind, the repository and the reference of a request.
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
