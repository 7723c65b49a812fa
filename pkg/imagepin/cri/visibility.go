package cri

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"go.opentelemetry.io/otel/trace"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Visibility waits until upstream knows images. It implements [pull.Upstream].
type Visibility struct {
	Images runtime.ImageServiceClient
	// Remind makes upstream read the record with this name again. Upstream does not do so by itself if it could not
	// read the image when it started. WaitVisible calls it once for each name if waiting takes long.
	Remind func(ctx context.Context, name string) error
}

// WaitVisible implements [pull.Upstream]. If it waits in vain for a name, upstream's knowledge of the image ID is
// sufficient: containers are created by ID. Upstream delays the events of a name by up to five minutes after it could not
// read an image by that name (see package upstream).
func (v Visibility) WaitVisible(ctx context.Context, id digest.Digest, names []string, wanted func(name string) bool) error {
	caller := untraced(ctx)
	ctx, cancel := context.WithTimeoutCause(caller, visibleTimeout, errUpstreamNotSynced)
	defer cancel()
	tick := time.NewTicker(visiblePoll)
	defer tick.Stop()
	late := time.NewTimer(visibleRemind)
	defer late.Stop()
	missing := slices.Clone(names)
	for {
		missing = slices.DeleteFunc(missing, func(name string) bool { return !wanted(name) })
		if len(missing) == 0 {
			return nil
		}
		// Upstream handles events in order, so it mostly knows the other names once it knows the last one.
		name := missing[len(missing)-1]
		known, err := v.lookup(ctx, name, id)
		if len(known) > 0 {
			missing = slices.DeleteFunc(missing, func(name string) bool { return slices.Contains(known, name) })
			continue
		}
		select {
		case <-tick.C:
		case <-late.C:
			for _, name := range names {
				if err := v.Remind(ctx, name); err != nil && !errdefs.IsNotFound(err) && ctx.Err() == nil {
					log.G(ctx).WithError(err).WithField("image", name).Warn("cannot make containerd's CRI read an image record again")
				}
			}
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errUpstreamNotSynced) {
				return cause
			}
			if known, _ := v.lookup(caller, id.String(), id); len(known) == 0 {
				return notSynced(name, err)
			}
			log.G(ctx).WithField("image", name).Warn("containerd's CRI does not know an image by this name yet")
			return nil
		}
	}
}

// lookup returns the names by which upstream knows an image ID, among them name. It returns none if upstream does not know
// it by name.
func (v Visibility) lookup(ctx context.Context, name string, id digest.Digest) ([]string, error) {
	resp, err := v.Images.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: name}})
	if err != nil || resp.GetImage().GetId() != id.String() {
		return nil, err
	}
	return slices.Concat([]string{name, id.String()}, resp.GetImage().GetRepoTags(), resp.GetImage().GetRepoDigests()), nil
}

// untraced keeps calls that are made many times, as in a poll, out of the caller's trace.
func untraced(ctx context.Context) context.Context {
	span := trace.SpanContextFromContext(ctx)
	return trace.ContextWithSpanContext(ctx, span.WithTraceFlags(span.TraceFlags().WithSampled(false)))
}

var errUpstreamNotSynced = errors.New("not visible in time")
