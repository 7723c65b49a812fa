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

// answers is a CRI service that says who it is, and whose events do not end.
type answers struct {
	runtime.UnimplementedRuntimeServiceServer
	name    string
	entered chan struct{}
	release chan struct{}
}

func (a *answers) Version(ctx context.Context, r *runtime.VersionRequest) (*runtime.VersionResponse, error) {
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

func (a *answers) GetContainerEvents(_ *runtime.GetEventsRequest, stream runtime.RuntimeService_GetContainerEventsServer) error {
	if err := stream.Send(&runtime.ContainerEventResponse{ContainerId: a.name}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func lineOf(a *answers) *backend {
	l := &backend{
		unary: make(map[string]method[grpc.MethodDesc]), streams: make(map[string]method[grpc.StreamDesc]),
		rest: func(any, grpc.ServerStream) error { return status.Error(codes.DataLoss, "passed on") },
	}
	runtime.RegisterRuntimeServiceServer(l, a)
	return l
}

func TestExchange(t *testing.T) {
	cutStreams, streams := context.WithCancel(t.Context())
	cutAll, all := context.WithCancel(t.Context())
	x := &dispatcher{cutStreams: cutStreams, cutAll: cutAll}
	x.unavailable(errors.New("nobody is there"))
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
	ask := func(version string) (string, error) {
		resp, err := client.Version(t.Context(), &runtime.VersionRequest{Version: version})
		return resp.GetRuntimeName(), err
	}

	if _, err := ask(""); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "imagepin: nobody is there") {
		t.Errorf("with nobody there: %v", err)
	}
	first := &answers{name: "first", entered: make(chan struct{}), release: make(chan struct{})}
	x.connect(lineOf(first))
	events, err := client.GetContainerEvents(t.Context(), &runtime.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := events.Recv(); err != nil || e.GetContainerId() != "first" {
		t.Fatalf("%v, %v", e, err)
	}
	slow := make(chan string, 1)
	go func() {
		name, err := ask("slow")
		slow <- name + status.Code(err).String()
	}()
	<-first.entered

	second := &answers{name: "second", entered: make(chan struct{}), release: make(chan struct{})}
	x.connect(lineOf(second))
	if name, err := ask(""); name != "second" || err != nil {
		t.Errorf("a new call is answered by %q, %v", name, err)
	}
	close(first.release)
	if got := <-slow; got != "firstOK" {
		t.Errorf("a call that had begun is answered by %s", got)
	}
	if err := conn.Invoke(t.Context(), "/runtime.v9.New/Method", &runtime.VersionRequest{}, &runtime.VersionResponse{}); status.Code(err) != codes.DataLoss {
		t.Errorf("a method that it does not know: %v", err)
	}
	if err := conn.Invoke(t.Context(), "/other/Method", &runtime.VersionRequest{}, &runtime.VersionResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method of another service: %v", err)
	}

	go func() {
		name, err := ask("slow")
		slow <- name + status.Code(err).String()
	}()
	<-second.entered
	streams()
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "imagepin is stopping") {
		t.Errorf("the stream ends with %v", err)
	}
	select {
	case got := <-slow:
		t.Errorf("a call ended with the streams: %s", got)
	default:
	}
	all()
	if got := <-slow; got != codes.Unavailable.String() {
		t.Errorf("the last call ends with %s", got)
	}
}
