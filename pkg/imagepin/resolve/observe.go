package resolve

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Result is the result of a digest lookup at a registry.
type Result string

// The results of a digest lookup.
const (
	ResultResolved    Result = "resolved"
	Denied            Result = "denied"
	NotFound          Result = "not_found"
	ResultUnavailable Result = "unavailable"
	Failed            Result = "failed"
	// ResultCanceled: no caller waits for the answer.
	ResultCanceled Result = "canceled"
)

// Results lists all results.
var Results = []Result{ResultResolved, Denied, NotFound, ResultUnavailable, Failed, ResultCanceled}

// Observer is notified of digest lookups.
type Observer interface {
	// Resolved is called at the end of every lookup. Concurrent identical lookups count once.
	Resolved(result Result, took time.Duration)
}

type noObserver struct{}

func (noObserver) Resolved(Result, time.Duration) {}

// observed is resolve with metrics and tracing. Concurrent identical lookups count once.
func (r *Resolver) observed(ctx context.Context, s *Session, asked askedHosts) (Resolved, error) {
	sctx, span := tracing.StartSpan(ctx, "imagepin.resolve", tracing.WithAttribute("image.ref", s.ref.String()))
	defer span.End()
	start := time.Now()
	found, err := r.resolve(sctx, s, asked)
	r.config.Observer.Resolved(resultOf(ctx, err), time.Since(start))
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
		return ResultResolved
	case ctx.Err() != nil:
		return ResultCanceled
	case errors.As(err, &e) && e.Reason == imagepin.PullAccessDenied:
		return Denied
	case Unavailable(err):
		return ResultUnavailable
	case errdefs.IsNotFound(err):
		return NotFound
	}
	return Failed
}

// Unavailable reports whether a resolve failed because no registry was available: none could be reached, or answered in
// time, or without 429 or 5xx. A registry that rejects the credential is available.
func Unavailable(err error) bool {
	var e *imagepin.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Reason == imagepin.ManifestPullTimeout ||
		e.Reason == imagepin.CannotPullImageManifest && errdefs.IsUnavailable(e.Class)
}
