package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

var services = []string{"runtime.v1.RuntimeService", "runtime.v1.ImageService"}

// backend is a gRPC server that has every method of the CRI. It echoes the text of a request and records the method and
// the metadata.
type backend struct {
	mu       sync.Mutex
	methods  []string
	metadata metadata.MD
	fail     error
	messages int // number of messages that a streaming method returns
}

func (b *backend) handle(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	m, err := methodOf(full)
	if err != nil {
		return status.Error(codes.Unimplemented, err.Error())
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	b.mu.Lock()
	b.methods = append(b.methods, full)
	b.metadata = md
	fail, n := b.fail, b.messages
	b.mu.Unlock()
	in := newMessage(m.Input())
	if err := stream.RecvMsg(in); err != nil {
		return err
	}
	if err := stream.SetHeader(metadata.Pairs("x-header", "h")); err != nil {
		return err
	}
	stream.SetTrailer(metadata.Pairs("x-trailer", "t"))
	if !m.IsStreamingServer() {
		n = 1
		if fail != nil {
			return fail
		}
	}
	for i := range n {
		out := newMessage(m.Output())
		mark(out, fmt.Sprintf("%s %d", textOf(in), i))
		if err := stream.SendMsg(out); err != nil {
			return err
		}
	}
	return fail
}

func methodOf(full string) (protoreflect.MethodDescriptor, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil, err
	}
	return d.(protoreflect.MethodDescriptor), nil
}

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err)
	}
	return t.New().Interface()
}

// mark stores a text in the unknown fields of a message. Every message can have unknown fields, and a proxy must keep
// them.
func mark(m proto.Message, text string) {
	raw := append([]byte{0xfa, 0x7f, byte(len(text))}, text...) // field 2047, bytes
	m.ProtoReflect().SetUnknown(raw)
}

func textOf(m proto.Message) string {
	if raw := m.ProtoReflect().GetUnknown(); len(raw) > 3 {
		return string(raw[3:])
	}
	return ""
}

// dial serves s in the process and returns a connection to it.
func dial(t *testing.T, s *grpc.Server) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(listener)
	}()
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		<-served
	})
	return conn
}

// newProxy returns a backend, and a connection to a server that forwards to it through the given interceptors.
func newProxy(t *testing.T, ready <-chan struct{}, unary map[string]unaryInterceptor, streams map[string]streamInterceptor) (*backend, *grpc.ClientConn) {
	t.Helper()
	b := &backend{messages: 3}
	backendConn := dial(t, grpc.NewServer(grpc.UnknownServiceHandler(b.handle)))
	front := grpc.NewServer()
	guard := (&Service{base: &base{Config: Config{Ready: ctdtest.Always(ready)}}}).guard
	for _, name := range services {
		i := &interceptors{conn: backendConn, guard: guard}
		if name == "runtime.v1.ImageService" {
			i.unary, i.streams = unary, streams
		}
		upstream, err := Remote(backendConn).Service(name)
		if err != nil {
			t.Fatal(err)
		}
		desc, err := i.apply(upstream)
		if err != nil {
			t.Fatal(err)
		}
		front.RegisterService(desc, nil)
	}
	return b, dial(t, front)
}

func alwaysReady() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// methods returns all methods of the CRI.
func methods(t *testing.T) []protoreflect.MethodDescriptor {
	t.Helper()
	var all []protoreflect.MethodDescriptor
	for _, name := range services {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Fatal(err)
		}
		ms := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range ms.Len() {
			all = append(all, ms.Get(i))
		}
	}
	return all
}

// call sends one message to a method and returns all answers.
func call(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, text string) (answers []string, header, trailer metadata.MD, _ error) {
	full := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	in := newMessage(m.Input())
	mark(in, text)
	if !m.IsStreamingServer() && !m.IsStreamingClient() {
		out := newMessage(m.Output())
		err := conn.Invoke(ctx, full, in, out)
		return []string{textOf(out)}, nil, nil, err
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: m.IsStreamingServer(), ClientStreams: m.IsStreamingClient()}, full)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := errors.Join(stream.SendMsg(in), stream.CloseSend()); err != nil {
		return nil, nil, nil, err
	}
	for {
		out := newMessage(m.Output())
		err := stream.RecvMsg(out)
		if err != nil {
			header, _ = stream.Header()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return answers, header, stream.Trailer(), err
		}
		answers = append(answers, textOf(out))
	}
}

func TestEveryMethodIsForwarded(t *testing.T) {
	b, conn := newProxy(t, alwaysReady(), nil, nil)
	all := methods(t)
	streams := 0
	for _, m := range all {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "trace", "x-many", "1", "x-many", "2")
		text := string(m.Name())
		answers, header, trailer, err := call(ctx, conn, m, text)
		if err != nil {
			t.Errorf("%s: %v", m.FullName(), err)
			continue
		}
		want := []string{text + " 0"}
		if m.IsStreamingServer() {
			streams++
			want = append(want, text+" 1", text+" 2")
			if !slices.Equal(header["x-header"], []string{"h"}) || !slices.Equal(trailer["x-trailer"], []string{"t"}) {
				t.Errorf("%s: got header %v, trailer %v", m.Name(), header, trailer)
			}
		}
		if !slices.Equal(answers, want) {
			t.Errorf("%s: got answers %v, want %v", m.Name(), answers, want)
		}
		if got := b.methods[len(b.methods)-1]; got != fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()) {
			t.Errorf("%s was forwarded as %s", m.Name(), got)
		}
		if !slices.Equal(b.metadata["traceparent"], []string{"trace"}) || !slices.Equal(b.metadata["x-many"], []string{"1", "2"}) {
			t.Errorf("%s: metadata was not forwarded: %v", m.Name(), b.metadata)
		}
		if len(b.metadata["user-agent"]) != 1 || len(b.metadata["content-type"]) != 1 || len(b.metadata[":authority"]) != 1 {
			t.Errorf("%s: connection metadata was forwarded: %v", m.Name(), b.metadata)
		}
	}
	if len(b.methods) != len(all) || streams == 0 {
		t.Errorf("forwarded %d calls of %d methods, %d of them streams", len(b.methods), len(all), streams)
	}
}

func TestErrorsAreForwardedUnchanged(t *testing.T) {
	b, conn := newProxy(t, alwaysReady(), nil, nil)
	s, err := status.New(codes.ResourceExhausted, "no room").WithDetails(&errdetails.ErrorInfo{Reason: "R", Domain: "d"})
	if err != nil {
		t.Fatal(err)
	}
	b.fail = s.Err()
	for _, m := range methods(t) {
		answers, _, trailer, err := call(t.Context(), conn, m, "x")
		got := status.Convert(err)
		if got.Code() != codes.ResourceExhausted || got.Message() != "no room" || len(got.Details()) != 1 {
			t.Errorf("%s: got %v, details %v, want the upstream error", m.Name(), got, got.Details())
		}
		if m.IsStreamingServer() && (len(answers) != 3 || len(trailer["x-trailer"]) != 1) {
			t.Errorf("%s: got %d answers before the error, trailer %v, want 3", m.Name(), len(answers), trailer)
		}
	}
}

func TestUnknownMethodIsAnError(t *testing.T) {
	for _, name := range []string{"runtime.v1.NoService", "runtime.v1.ImageSpec"} {
		if desc, err := Remote(nil).Service(name); err == nil {
			t.Errorf("%s: got service %v, want an error", name, desc)
		}
	}
	upstream, err := Remote(nil).Service("runtime.v1.ImageService")
	if err != nil {
		t.Fatal(err)
	}
	answer := func(context.Context, proto.Message, forward) (proto.Message, error) { return nil, nil }
	for _, i := range []*interceptors{
		{unary: map[string]unaryInterceptor{"NoMethod": answer}},
		{streams: map[string]streamInterceptor{"NoStream": func(grpc.ServerStream) error { return nil }}},
		{unary: map[string]unaryInterceptor{"StreamImages": answer}},
	} {
		if _, err := i.apply(upstream); err == nil {
			t.Errorf("%+v: got no error", i)
		}
	}
}

func withoutLogs(ctx context.Context) context.Context {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return log.WithLogger(ctx, logrus.NewEntry(l))
}

func TestPanicDoesNotReachContainerd(t *testing.T) {
	out := logrus.StandardLogger().Out
	logrus.SetOutput(io.Discard)
	t.Cleanup(func() { logrus.SetOutput(out) })
	b, conn := newProxy(t, alwaysReady(),
		map[string]unaryInterceptor{
			"ListImages": func(context.Context, proto.Message, forward) (proto.Message, error) { panic("mine") },
			"ImageStatus": intercept(func(ctx context.Context, r *runtime.ImageStatusRequest, next func(context.Context, *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error)) (*runtime.ImageStatusResponse, error) {
				return next(ctx, r)
			}),
		},
		map[string]streamInterceptor{"StreamImages": func(grpc.ServerStream) error { panic("mine") }},
	)
	images := runtime.NewImageServiceClient(conn)
	for range 2 {
		if _, err := images.ListImages(t.Context(), &runtime.ListImagesRequest{}); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "ListImages") {
			t.Errorf("ListImages: got %v, want an Internal error", err)
		}
		stream, err := images.StreamImages(t.Context(), &runtime.StreamImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.Internal {
			t.Errorf("StreamImages: got %v, want an Internal error", err)
		}
	}
	if _, err := images.ImageStatus(t.Context(), &runtime.ImageStatusRequest{}); err != nil {
		t.Errorf("a call after a panic fails: %v", err)
	}
	b.fail = status.Error(codes.AlreadyExists, "from upstream")
	if _, err := images.ImageStatus(t.Context(), &runtime.ImageStatusRequest{}); status.Code(err) != codes.AlreadyExists || status.Convert(err).Message() != "from upstream" {
		t.Errorf("error through an interceptor: got %v, want the upstream error", err)
	}
}

func TestCallsWaitForTheIndex(t *testing.T) {
	ready := make(chan struct{})
	_, conn := newProxy(t, ready, map[string]unaryInterceptor{
		"ListImages": func(context.Context, proto.Message, forward) (proto.Message, error) {
			return &runtime.ListImagesResponse{}, nil
		},
	}, nil)
	images := runtime.NewImageServiceClient(conn)

	// A call without an interceptor does not wait.
	if _, err := images.ImageFsInfo(t.Context(), &runtime.ImageFsInfoRequest{}); err != nil {
		t.Error(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := images.ListImages(t.Context(), &runtime.ListImagesRequest{})
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("ListImages did not wait for the index: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(ready)
	if err := <-got; err != nil {
		t.Error(err)
	}

	s := &Service{base: &base{Config: Config{Ready: ctdtest.Always[<-chan struct{}](make(chan struct{}))}}}
	ctx, cancel := context.WithCancel(withoutLogs(t.Context()))
	cancel()
	err := s.guard(ctx, "ListImages", nil, func() error { t.Error("the call ran before the index was ready"); return nil })
	if status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want an Unavailable error", err)
	}
}

// TestRegister checks that the server has every method of the CRI.
func TestRegister(t *testing.T) {
	server := grpc.NewServer()
	if err := New(Config{Upstream: Remote(nil)}).Register(server); err != nil {
		t.Fatal(err)
	}
	info := server.GetServiceInfo()
	for _, m := range methods(t) {
		has := slices.ContainsFunc(info[string(m.Parent().FullName())].Methods, func(i grpc.MethodInfo) bool {
			return i.Name == string(m.Name()) && i.IsServerStream == m.IsStreamingServer() && i.IsClientStream == m.IsStreamingClient()
		})
		if !has {
			t.Errorf("%s is missing", m.FullName())
		}
	}
}

// TestStreamEndsWithItsClient checks that the upstream stream ends when its client cancels.
func TestStreamEndsWithItsClient(t *testing.T) {
	ended := make(chan struct{})
	upstream := dial(t, grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		if err := s.SendMsg(&runtime.ContainerEventResponse{ContainerId: "c"}); err != nil {
			return err
		}
		<-s.Context().Done()
		close(ended)
		return s.Context().Err()
	})))
	desc, err := Remote(upstream).Service(services[0])
	if err != nil {
		t.Fatal(err)
	}
	front := grpc.NewServer()
	front.RegisterService(desc, nil)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := runtime.NewRuntimeServiceClient(dial(t, front)).GetContainerEvents(ctx, &runtime.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := stream.Recv(); err != nil || e.GetContainerId() != "c" {
		t.Errorf("got event %v, %v, want container c", e, err)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the upstream stream did not end")
	}
}
