package resolve

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// LookUp returns the digest that a registry has for ref, a tag or a digest, for a caller without a credential. It asks only
// hosts with the capability resolve, so the answer is a proof. A host or token service that is busy is not asked again:
// LookUp is for questions that nothing waits for. They are not reported to the [Observer].
//
// It fails as [Resolver.Resolve] does, and with [Busy] if a host or its token service answered 429 or 503.
func (r *Resolver) LookUp(ctx context.Context, ref reference.Named) (digest.Digest, error) {
	return r.lookUp(ctx, ref, trustedHosts)
}

// LookUpAtOrigin is [Resolver.LookUp] at the origin of the registry only, see [Resolver.ResolveAtOrigin].
func (r *Resolver) LookUpAtOrigin(ctx context.Context, ref reference.Named) (digest.Digest, error) {
	return r.lookUp(ctx, ref, onlyOrigin)
}

func (r *Resolver) lookUp(ctx context.Context, ref reference.Named, asked askedHosts) (digest.Digest, error) {
	t := &traffic{limiter: r.config.Limiter, busy: &busyAnswers{}}
	s := r.session(ref, Credential{}, t)
	found, err := r.resolve(ctx, s, asked)
	if err != nil {
		return "", t.busy.explain(err)
	}
	return found.Root.Digest, nil
}

// Busy is the error of a lookup if a registry host or its token service answered 429 or 503.
type Busy struct {
	Err error // of the lookup
	// RetryAfter is how long the server wants the client to wait; 0 if it does not say.
	RetryAfter time.Duration
}

func (b *Busy) Error() string { return b.Err.Error() }

// Unwrap returns the error of the lookup.
func (b *Busy) Unwrap() error { return b.Err }

// busyAnswers has the answers of hosts that want the client to come back later. A nil one notes nothing.
type busyAnswers struct {
	mu    sync.Mutex
	any   bool
	after time.Duration // the longest Retry-After
}

// note notes a response if its host is busy, and reports whether it has.
func (b *busyAnswers) note(resp *http.Response) bool {
	if b == nil || !isBusy(resp.StatusCode) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.any, b.after = true, max(b.after, retryAfter(resp, time.Now()))
	return true
}

// refuse returns the response of a registry host, or its error if the host is busy: containerd would repeat the request at
// once.
func (b *busyAnswers) refuse(resp *http.Response) (*http.Response, error) {
	if !b.note(resp) {
		return resp, nil
	}
	_ = resp.Body.Close()
	return nil, unexpected(resp)
}

// explain returns err, as a [Busy] if a host was busy.
func (b *busyAnswers) explain(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.any {
		return err
	}
	return &Busy{Err: err, RetryAfter: b.after}
}
