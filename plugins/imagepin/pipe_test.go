package imagepin

import (
	"context"
	"slices"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// behindPipe is a CRI service that notes the span it is called in.
type behindPipe struct {
	runtime.UnimplementedRuntimeServiceServer
	calledIn trace.SpanContext
}

func (b *behindPipe) Register(s *grpc.Server) error {
	runtime.RegisterRuntimeServiceServer(s, b)
	return nil
}

func (b *behindPipe) Version(ctx context.Context, _ *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	b.calledIn = trace.SpanContextFromContext(ctx)
	return &runtime.VersionResponse{}, nil
}

func dialBehind(t testing.TB, b *behindPipe) runtime.RuntimeServiceClient {
	t.Helper()
	conn, stop, err := pipe(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return runtime.NewRuntimeServiceClient(conn)
}

// record sets tracing up as containerd's tracing plugin does, and keeps the
// spans.
func record(t testing.TB) *tracetest.InMemoryExporter {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
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

func TestPipeCarriesTheTraceOn(t *testing.T) {
	spans := record(t)
	behind := &behindPipe{}
	client := dialBehind(t, behind)

	ctx, caller := otel.Tracer("").Start(t.Context(), "caller")
	if _, err := client.Version(ctx, &runtime.VersionRequest{}); err != nil {
		t.Fatal(err)
	}
	caller.End()
	if behind.calledIn.TraceID() != caller.SpanContext().TraceID() {
		t.Errorf("the service behind is called in trace %s, not in the caller's %s", behind.calledIn.TraceID(), caller.SpanContext().TraceID())
	}
	all := spans.GetSpans()
	at := slices.IndexFunc(all, func(s tracetest.SpanStub) bool { return s.SpanContext.SpanID() == behind.calledIn.SpanID() })
	if at < 0 {
		t.Fatalf("the span in which the service behind is called was not exported: %v", all)
	}
	if all[at].SpanKind != trace.SpanKindServer || !all[at].Parent.IsValid() {
		t.Errorf("the service behind is called in %q, kind %s, parent %v", all[at].Name, all[at].SpanKind, all[at].Parent)
	}
}

func BenchmarkPipe(b *testing.B) {
	call := func(b *testing.B) {
		client := dialBehind(b, &behindPipe{})
		for b.Loop() {
			if _, err := client.Version(b.Context(), &runtime.VersionRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("untraced", call)
	b.Run("traced", func(b *testing.B) {
		record(b)
		otel.SetTracerProvider(sdk.NewTracerProvider())
		call(b)
	})
}
