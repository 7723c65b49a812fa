package pull

import (
	"context"

	"github.com/containerd/containerd/v2/pkg/tracing"

	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// traced runs a step of a pull under a span of its own, which ends with the
// step's error.
func traced(ctx context.Context, step string, do func(context.Context) error, opts ...tracing.SpanOpt) error {
	ctx, span := tracing.StartSpan(ctx, tracing.Name("imagepin", step), opts...)
	defer span.End()
	err := do(ctx)
	span.SetStatus(resolve.RedactError(err))
	return err
}

// failure is what a pull that failed counts as. The context of one whose callers
// have all gone has ended.
func failure(ctx context.Context) metrics.Done {
	if ctx.Err() != nil {
		return metrics.Canceled
	}
	return metrics.Error
}
