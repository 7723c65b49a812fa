//go:build unix

package serve

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeCRI is a CRI service that returns its name. Its event stream does not end.
type fakeCRI struct {
	runtime.UnimplementedRuntimeServiceServer
	name    string
	entered chan struct{}
	release chan struct{}
}

func (a *fakeCRI) Version(ctx context.Context, r *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	if r.GetVersion() == "slow" {
		close(a.entered)
		select {
		case <-a.release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &runtime.VersionResponse{RuntimeName: a.name}, nil
}

func (a *fakeCRI) GetContainerEvents(_ *runtime.GetEventsRequest, stream runtime.RuntimeService_GetContainerEventsServer) error {
	if err := stream.Send(&runtime.ContainerEventResponse{ContainerId: a.name}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func testBackend(a *fakeCRI) *backend {
	l := &backend{
		unary: make(map[string]method[grpc.MethodDesc]), streams: make(map[string]method[grpc.StreamDesc]),
		rest: func(any, grpc.ServerStream) error { return status.Error(codes.DataLoss, "forwarded") },
	}
	runtime.RegisterRuntimeServiceServer(l, a)
	return l
}

func TestDispatcher(t *testing.T) {
	cutStreams, streams := context.WithCancel(t.Context())
	cutAll, all := context.WithCancel(t.Context())
	x := &dispatcher{cutStreams: cutStreams, cutAll: cutAll}
	x.unavailable(errors.New("not connected"))
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.UnknownServiceHandler(x.handle))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
	})
	client := runtime.NewRuntimeServiceClient(conn)
	version := func(v string) (string, error) {
		resp, err := client.Version(t.Context(), &runtime.VersionRequest{Version: v})
		return resp.GetRuntimeName(), err
	}

	if _, err := version(""); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "imagepin: not connected") {
		t.Errorf("without a backend: got %v, want an Unavailable error", err)
	}
	first := &fakeCRI{name: "first", entered: make(chan struct{}), release: make(chan struct{})}
	x.connect(testBackend(first))
	events, err := client.GetContainerEvents(t.Context(), &runtime.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := events.Recv(); err != nil || e.GetContainerId() != "first" {
		t.Fatalf("got event %v, %v, want first", e, err)
	}
	slow := make(chan string, 1)
	go func() {
		name, err := version("slow")
		slow <- name + status.Code(err).String()
	}()
	<-first.entered

	second := &fakeCRI{name: "second", entered: make(chan struct{}), release: make(chan struct{})}
	x.connect(testBackend(second))
	if name, err := version(""); name != "second" || err != nil {
		t.Errorf("new call: got %q, %v, want second", name, err)
	}
	close(first.release)
	if got := <-slow; got != "firstOK" {
		t.Errorf("call in progress: got %s, want firstOK", got)
	}
	if err := conn.Invoke(t.Context(), "/runtime.v9.New/Method", &runtime.VersionRequest{}, &runtime.VersionResponse{}); status.Code(err) != codes.DataLoss {
		t.Errorf("unknown method: got %v, want it forwarded", err)
	}
	if err := conn.Invoke(t.Context(), "/other/Method", &runtime.VersionRequest{}, &runtime.VersionResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("method of another service: got %v, want an Unimplemented error", err)
	}

	go func() {
		name, err := version("slow")
		slow <- name + status.Code(err).String()
	}()
	<-second.entered
	streams()
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "imagepin is stopping") {
		t.Errorf("stream: got %v, want an Unavailable error", err)
	}
	select {
	case got := <-slow:
		t.Errorf("a unary call ended with the streams: %s", got)
	default:
	}
	all()
	if got := <-slow; got != codes.Unavailable.String() {
		t.Errorf("last call: got %s, want Unavailable", got)
	}
}
