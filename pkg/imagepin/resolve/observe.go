package resolve

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Result is how a digest lookup at a registry ended.
type Result string

// The results of a digest lookup.
const (
	Answered Result = "resolved"
	Denied   Result = "denied"
	NotFound Result = "not_found"
	NoAnswer Result = "unavailable"
	Failed   Result = "failed"
	// GivenUp is a lookup whose callers have all gone before its answer.
	GivenUp Result = "canceled"
)

// Results are all results.
var Results = []Result{Answered, Denied, NotFound, NoAnswer, Failed, GivenUp}

// Observer is notified of digest lookups.
type Observer interface {
	// Resolved is called at the end of every lookup. Concurrent identical lookups are one.
	Resolved(result Result, took time.Duration)
}

type nobody struct{}

func (nobody) Resolved(Result, time.Duration) {}

// observed is resolve, counted and traced: once per question to a registry,
// however many have asked it.
func (r *Resolver) observed(ctx context.Context, s *Session, resolver remotes.Resolver) (Resolved, error) {
	sctx, span := tracing.StartSpan(ctx, "imagepin.resolve", tracing.WithAttribute("image.ref", s.ref.String()))
	defer span.End()
	start := time.Now()
	found, err := r.resolve(sctx, s, resolver)
	r.Observer.Resolved(resultOf(ctx, err), time.Since(start))
	span.SetStatus(err)
	if err == nil {
		span.SetAttributes(tracing.Attribute("image.digest", found.Root.Digest.String()), tracing.Attribute("registry.host", found.Host))
	}
	return found, err
}

func resultOf(ctx context.Context, err error) Result {
	var e *imagepin.Error
	switch {
	case err == nil:
		return Answered
	case ctx.Err() != nil:
		return GivenUp
	case errors.As(err, &e) && e.Reason == imagepin.PullAccessDenied:
		return Denied
	case Unavailable(err):
		return NoAnswer
	case errdefs.IsNotFound(err):
		return NotFound
	}
	return Failed
}

// Unavailable tells whether a resolve failed because no registry could be
// asked: it was not reached, did not answer in time, or answered 429 or 5xx.
// One that refused the credential was reached.
func Unavailable(err error) bool {
	var e *imagepin.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Reason == imagepin.ManifestPullTimeout ||
		e.Reason == imagepin.CannotPullImageManifest && errdefs.IsUnavailable(e.Class)
}
