package imagepin

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// recorder keeps spans and signals when one is exported.
type recorder struct {
	*tracetest.InMemoryExporter
	exported chan struct{}
}

func (r *recorder) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer func() {
		select {
		case r.exported <- struct{}{}:
		default:
		}
	}()
	return r.InMemoryExporter.ExportSpans(ctx, spans)
}

// span waits for a span, because the span of a service ends after its answer arrives.
func (r *recorder) span(t testing.TB, id trace.SpanID) tracetest.SpanStub {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		all := r.GetSpans()
		if at := slices.IndexFunc(all, func(s tracetest.SpanStub) bool { return s.SpanContext.SpanID() == id }); at >= 0 {
			return all[at]
		}
		select {
		case <-r.exported:
		case <-deadline:
			t.Fatalf("span %s was not exported: %v", id, all)
		}
	}
}

// recordSpans configures tracing as containerd's tracing plugin does, and records the spans.
func recordSpans(t testing.TB) *recorder {
	t.Helper()
	exporter := &recorder{tracetest.NewInMemoryExporter(), make(chan struct{}, 1)}
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter))
	beforeProvider, beforePropagator := otel.GetTracerProvider(), otel.GetTextMapPropagator()
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	t.Cleanup(func() {
		otel.SetTracerProvider(beforeProvider)
		otel.SetTextMapPropagator(beforePropagator)
	})
	return exporter
}

func TestPipePropagatesTrace(t *testing.T) {
	spans := recordSpans(t)
	upstream := &fakeCRI{}
	p, err := newPipe(upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})

	ctx, caller := otel.Tracer("").Start(t.Context(), "caller")
	if _, err := runtime.NewRuntimeServiceClient(p).Version(ctx, &runtime.VersionRequest{}); err != nil {
		t.Fatal(err)
	}
	caller.End()
	if upstream.calledIn.TraceID() != caller.SpanContext().TraceID() {
		t.Errorf("upstream: got trace %s, want the caller's %s", upstream.calledIn.TraceID(), caller.SpanContext().TraceID())
	}
	got := spans.span(t, upstream.calledIn.SpanID())
	if got.SpanKind != trace.SpanKindServer || !got.Parent.IsValid() {
		t.Errorf("upstream: got span %q, kind %s, parent %v, want kind server and a parent", got.Name, got.SpanKind, got.Parent)
	}
}

// TestLazyPipe checks that a pipe is opened once, when it is used, and not after it was closed.
func TestLazyPipe(t *testing.T) {
	l := &lazyPipe{service: &fakeCRI{}}
	if l.pipe != nil {
		t.Error("the pipe is open before it is used")
	}
	first, err := l.open()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.open(); again != first || err != nil {
		t.Errorf("got %p, %v, want the open pipe %p", again, err, first)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	unused := &lazyPipe{service: &fakeCRI{}}
	if err := unused.Close(); err != nil {
		t.Error(err)
	}
	for _, closed := range []*lazyPipe{l, unused} {
		if _, err := closed.open(); status.Code(err) != codes.Unavailable {
			t.Errorf("after Close: got %v, want code Unavailable", err)
		}
	}
}
