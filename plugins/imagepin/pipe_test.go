package imagepin

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// behindPipe is a CRI service that notes the span it is called in.
type behindPipe struct {
	runtime.UnimplementedRuntimeServiceServer
	calledIn trace.SpanContext
	answer   *runtime.ListContainersResponse
	fail     error
	hold     chan struct{} // where there is one, an answer is given once it is closed
}

func (b *behindPipe) Register(s *grpc.Server) error {
	runtime.RegisterRuntimeServiceServer(s, b)
	return nil
}

func (b *behindPipe) Version(ctx context.Context, _ *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	b.calledIn = trace.SpanContextFromContext(ctx)
	return &runtime.VersionResponse{}, nil
}

func (b *behindPipe) ListContainers(ctx context.Context, _ *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	if b.hold != nil {
		<-b.hold
	}
	return b.answer, b.fail
}

func dialBehind(t testing.TB, b *behindPipe) *pipe {
	t.Helper()
	p, err := newPipe(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

const listContainers = runtime.RuntimeService_ListContainers_FullMethodName

func TestPipeHandsAnswersOver(t *testing.T) {
	p := dialBehind(t, &behindPipe{answer: &runtime.ListContainersResponse{Containers: []*runtime.Container{{Id: "one"}}}})
	req := &runtime.ListContainersRequest{}
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			got, err := p.Call(t.Context(), listContainers, req)
			if err != nil {
				t.Error(err)
			} else if got.(*runtime.ListContainersResponse).GetContainers()[0].GetId() != "one" {
				t.Errorf("the answer is %v", got)
			}
		})
	}
	wait.Wait()
	p.nobodyWaits(t)

	// What is only invoked is written and read.
	got, err := runtime.NewRuntimeServiceClient(p).ListContainers(t.Context(), req)
	if err != nil || len(got.GetContainers()) != 1 {
		t.Errorf("the answer is %v, %v", got, err)
	}
}

func TestPipeHandsTheVeryAnswerOver(t *testing.T) {
	b := &behindPipe{answer: &runtime.ListContainersResponse{}}
	got, err := dialBehind(t, b).Call(t.Context(), listContainers, &runtime.ListContainersRequest{})
	if err != nil || got != b.answer {
		t.Errorf("the answer is %p, %v, not %p", got, err, b.answer)
	}
}

func TestPipeCallThatFails(t *testing.T) {
	p := dialBehind(t, &behindPipe{fail: status.Error(codes.NotFound, "none of these")})
	if got, err := p.Call(t.Context(), listContainers, &runtime.ListContainersRequest{}); status.Code(err) != codes.NotFound || got != nil {
		t.Errorf("the answer is %v, %v", got, err)
	}
	if got, err := p.Call(t.Context(), "/runtime.v1.RuntimeService/Unheard", &runtime.ListContainersRequest{}); status.Code(err) != codes.Unimplemented || got != nil {
		t.Errorf("the answer to a method that is not there is %v, %v", got, err)
	}
	p.nobodyWaits(t)
}

func TestPipeCallThatIsGivenUp(t *testing.T) {
	b := &behindPipe{answer: &runtime.ListContainersResponse{}, hold: make(chan struct{})}
	p := dialBehind(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := p.Call(ctx, listContainers, &runtime.ListContainersRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("the call ends with %v", err)
	}
	p.nobodyWaits(t)
	close(b.hold)
	if _, err := p.Call(t.Context(), listContainers, &runtime.ListContainersRequest{}); err != nil {
		t.Error(err)
	}
}

// nobodyWaits fails the test where something is kept for a call that is over.
func (p *pipe) nobodyWaits(t *testing.T) {
	t.Helper()
	p.waiting.Range(func(name, _ any) bool {
		t.Errorf("something waits for the answer to call %v", name)
		return true
	})
}

// recorder keeps spans, and tells of each that has come.
type recorder struct {
	*tracetest.InMemoryExporter
	came chan struct{}
}

func (r *recorder) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer func() {
		select {
		case r.came <- struct{}{}:
		default:
		}
	}()
	return r.InMemoryExporter.ExportSpans(ctx, spans)
}

// span waits for a span: that of a service ends after its answer has arrived.
func (r *recorder) span(t testing.TB, id trace.SpanID) tracetest.SpanStub {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		all := r.GetSpans()
		if at := slices.IndexFunc(all, func(s tracetest.SpanStub) bool { return s.SpanContext.SpanID() == id }); at >= 0 {
			return all[at]
		}
		select {
		case <-r.came:
		case <-deadline:
			t.Fatalf("span %s was not exported: %v", id, all)
		}
	}
}

// record sets tracing up as containerd's tracing plugin does, and keeps the
// spans.
func record(t testing.TB) *recorder {
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

func TestPipeCarriesTheTraceOn(t *testing.T) {
	spans := record(t)
	behind := &behindPipe{}
	client := runtime.NewRuntimeServiceClient(dialBehind(t, behind))

	ctx, caller := otel.Tracer("").Start(t.Context(), "caller")
	if _, err := client.Version(ctx, &runtime.VersionRequest{}); err != nil {
		t.Fatal(err)
	}
	caller.End()
	if behind.calledIn.TraceID() != caller.SpanContext().TraceID() {
		t.Errorf("the service behind is called in trace %s, not in the caller's %s", behind.calledIn.TraceID(), caller.SpanContext().TraceID())
	}
	got := spans.span(t, behind.calledIn.SpanID())
	if got.SpanKind != trace.SpanKindServer || !got.Parent.IsValid() {
		t.Errorf("the service behind is called in %q, kind %s, parent %v", got.Name, got.SpanKind, got.Parent)
	}
}

func BenchmarkPipe(b *testing.B) {
	version := func(b *testing.B) {
		client := runtime.NewRuntimeServiceClient(dialBehind(b, &behindPipe{}))
		for b.Loop() {
			if _, err := client.Version(b.Context(), &runtime.VersionRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("untraced", version)
	b.Run("traced", func(b *testing.B) {
		record(b)
		otel.SetTracerProvider(sdk.NewTracerProvider())
		version(b)
	})

	list := &runtime.ListContainersResponse{}
	for i := range 100 {
		list.Containers = append(list.Containers, &runtime.Container{
			Id: fmt.Sprintf("%064d", i), PodSandboxId: fmt.Sprintf("%064d", i),
			Labels: map[string]string{"io.kubernetes.container.name": "app", "io.kubernetes.pod.uid": fmt.Sprint(i)},
		})
	}
	b.Run("100 containers, invoked", func(b *testing.B) {
		p := dialBehind(b, &behindPipe{answer: list})
		for b.Loop() {
			if err := p.Invoke(b.Context(), listContainers, &runtime.ListContainersRequest{}, &emptypb.Empty{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("100 containers, called", func(b *testing.B) {
		p := dialBehind(b, &behindPipe{answer: list})
		for b.Loop() {
			if _, err := p.Call(b.Context(), listContainers, &runtime.ListContainersRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
