package imagepin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/cri"
)

// fakeCRI is a CRI service that records the span of its calls.
type fakeCRI struct {
	runtime.UnimplementedRuntimeServiceServer
	runtime.UnimplementedImageServiceServer
	calls    int
	calledIn trace.SpanContext
	list     *runtime.ListContainersResponse
	fail     error
}

func (b *fakeCRI) Register(s *grpc.Server) error {
	runtime.RegisterRuntimeServiceServer(s, b)
	runtime.RegisterImageServiceServer(s, b)
	return nil
}

func (b *fakeCRI) Version(ctx context.Context, _ *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	b.calls++
	b.calledIn = trace.SpanContextFromContext(ctx)
	return &runtime.VersionResponse{}, b.fail
}

func (b *fakeCRI) ListContainers(_ context.Context, r *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	if id := r.GetFilter().GetId(); id != "" {
		return &runtime.ListContainersResponse{Containers: []*runtime.Container{{Id: id}}}, nil
	}
	return b.list, b.fail
}

func (b *fakeCRI) StreamContainers(_ *runtime.StreamContainersRequest, stream grpc.ServerStreamingServer[runtime.StreamContainersResponse]) error {
	return stream.Send(&runtime.StreamContainersResponse{Containers: []*runtime.Container{{Id: "streamed"}}})
}

func connectLocal(t testing.TB, b registrar) *local {
	t.Helper()
	l := newLocal()
	if err := l.connect(b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestImplementationsAreFoundWithoutACall(t *testing.T) {
	b := &fakeCRI{}
	l := connectLocal(t, b)
	for _, service := range cri.Services() {
		if got := l.implementations[service.ServiceName]; got != b {
			t.Errorf("%s: got implementation %v", service.ServiceName, got)
		}
		if desc, err := l.Service(service.ServiceName); err != nil || len(desc.Methods) != len(service.Methods) || len(desc.Streams) != len(service.Streams) {
			t.Errorf("%s: got service %v, %v", service.ServiceName, desc, err)
		}
	}
	if desc, err := l.Service("runtime.v2.RuntimeService"); err == nil {
		t.Errorf("unknown service: got %v, want an error", desc)
	}
	if b.calls != 0 {
		t.Errorf("upstream got %d calls, want 0", b.calls)
	}
}

// onlyRuntime is a CRI service without the image service.
type onlyRuntime struct{ *fakeCRI }

func (o onlyRuntime) Register(s *grpc.Server) error {
	runtime.RegisterRuntimeServiceServer(s, o.fakeCRI)
	return nil
}

func TestMissingService(t *testing.T) {
	if err := newLocal().connect(onlyRuntime{&fakeCRI{}}); err == nil || !strings.Contains(err.Error(), "runtime.v1.ImageService") {
		t.Errorf("a CRI without an image service: got %v, want an error", err)
	}
}

func TestLocalCall(t *testing.T) {
	b := &fakeCRI{list: &runtime.ListContainersResponse{Containers: []*runtime.Container{{Id: "one"}}}}
	client := runtime.NewRuntimeServiceClient(connectLocal(t, b))

	got, err := client.ListContainers(t.Context(), &runtime.ListContainersRequest{})
	if err != nil || len(got.GetContainers()) != 1 || got.GetContainers()[0].GetId() != "one" {
		t.Fatalf("got answer %v, %v, want container one", got, err)
	}
	got.Containers[0].Id = "changed"
	if id := b.list.GetContainers()[0].GetId(); id != "one" {
		t.Errorf("the caller changed the container of upstream to %q", id)
	}
	req := &runtime.ListContainersRequest{Filter: &runtime.ContainerFilter{Id: "requested"}}
	if got, err = client.ListContainers(t.Context(), req); err != nil || got.GetContainers()[0].GetId() != "requested" {
		t.Errorf("request with a filter: got answer %v, %v", got, err)
	}
}

func TestLocalCallKeepsTrace(t *testing.T) {
	recordSpans(t)
	b := &fakeCRI{}
	client := runtime.NewRuntimeServiceClient(connectLocal(t, b))
	ctx, caller := otel.Tracer("").Start(t.Context(), "caller")
	defer caller.End()
	if _, err := client.Version(ctx, &runtime.VersionRequest{}); err != nil {
		t.Fatal(err)
	}
	if !b.calledIn.Equal(caller.SpanContext()) {
		t.Errorf("upstream: got span %v, want the caller's %v", b.calledIn, caller.SpanContext())
	}
}

func TestLocalErrorsMatchServerErrors(t *testing.T) {
	b := &fakeCRI{}
	l := connectLocal(t, b)
	pipe, err := l.streams.open()
	if err != nil {
		t.Fatal(err)
	}
	for _, fail := range []error{
		status.Error(codes.NotFound, "no such container"),
		fmt.Errorf("wrapped: %w", status.Error(codes.Unavailable, "not yet")),
		errors.New("no status"), context.Canceled, fmt.Errorf("wrapped: %w", context.DeadlineExceeded),
	} {
		b.fail = fail
		_, got := runtime.NewRuntimeServiceClient(l).Version(t.Context(), &runtime.VersionRequest{})
		_, want := runtime.NewRuntimeServiceClient(pipe).Version(t.Context(), &runtime.VersionRequest{})
		if status.Code(got) != status.Code(want) || got.Error() != want.Error() {
			t.Errorf("%v: got %v, want %v as from a server", fail, got, want)
		}
	}
}

func TestCallsOverPipe(t *testing.T) {
	l := connectLocal(t, &fakeCRI{})
	stream, err := runtime.NewRuntimeServiceClient(l).StreamContainers(t.Context(), &runtime.StreamContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := stream.Recv(); err != nil || got.GetContainers()[0].GetId() != "streamed" {
		t.Errorf("stream: got %v, %v, want container streamed", got, err)
	}
	if got, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("end of the stream: got %v, %v, want io.EOF", got, err)
	}
	if err := l.Invoke(t.Context(), "/runtime.v1.RuntimeService/Unknown", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown method: got %v, want an Unimplemented error", err)
	}
}

func BenchmarkLocal(b *testing.B) {
	list := &runtime.ListContainersResponse{}
	for i := range 100 {
		list.Containers = append(list.Containers, &runtime.Container{
			Id: fmt.Sprintf("%064d", i), PodSandboxId: fmt.Sprintf("%064d", i),
			Labels: map[string]string{"io.kubernetes.container.name": "app", "io.kubernetes.pod.uid": fmt.Sprint(i)},
		})
	}
	l := connectLocal(b, &fakeCRI{list: list})
	pipe, err := l.streams.open()
	if err != nil {
		b.Fatal(err)
	}
	for name, conn := range map[string]grpc.ClientConnInterface{"local": l, "pipe": pipe} {
		client := runtime.NewRuntimeServiceClient(conn)
		b.Run(name+"/Version", func(b *testing.B) {
			for b.Loop() {
				if _, err := client.Version(b.Context(), &runtime.VersionRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/ListContainers", func(b *testing.B) {
			for b.Loop() {
				if _, err := client.ListContainers(b.Context(), &runtime.ListContainersRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
