package cri

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageService is an in-process image service.
type imageService struct {
	runtime.UnimplementedImageServiceServer
	list *runtime.ListImagesResponse
}

func (s *imageService) ListImages(context.Context, *runtime.ListImagesRequest) (*runtime.ListImagesResponse, error) {
	return s.list, nil
}

func (s *imageService) StreamImages(_ *runtime.StreamImagesRequest, stream grpc.ServerStreamingServer[runtime.StreamImagesResponse]) error {
	return stream.Send(&runtime.StreamImagesResponse{Images: s.list.GetImages()})
}

// localUpstream is an in-process upstream with a connection for intercepted calls.
type localUpstream struct {
	grpc.ClientConnInterface
	images *imageService
}

func (l localUpstream) Service(string) (*grpc.ServiceDesc, error) {
	desc := runtime.ImageService_ServiceDesc
	desc.HandlerType, desc.Methods, desc.Streams = (*any)(nil), slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i, m := range desc.Methods {
		desc.Methods[i].Handler = func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return m.Handler(l.images, ctx, decode, interceptor)
		}
	}
	for i, stream := range desc.Streams {
		desc.Streams[i].Handler = func(_ any, s grpc.ServerStream) error { return stream.Handler(l.images, s) }
	}
	return &desc, nil
}

func TestOnlyInterceptedCallsUseTheConnection(t *testing.T) {
	b := &backend{}
	l := localUpstream{
		ClientConnInterface: dial(t, grpc.NewServer(grpc.UnknownServiceHandler(b.handle))),
		images:              &imageService{list: &runtime.ListImagesResponse{Images: []*runtime.Image{{Id: "its own"}}}},
	}
	i := &interceptors{
		conn: l, guard: (&Service{base: &base{Config: Config{Ready: alwaysReady}}}).guard,
		unary: map[string]unaryInterceptor{
			"ImageStatus": func(ctx context.Context, req proto.Message, next forward) (proto.Message, error) {
				return next(ctx, req)
			},
		},
	}
	upstream, err := l.Service("")
	if err != nil {
		t.Fatal(err)
	}
	desc, err := i.apply(upstream)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	front := grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, req any, call *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			seen = append(seen, call.FullMethod)
			return handle(ctx, req)
		}))
	front.RegisterService(desc, nil)
	client := runtime.NewImageServiceClient(dial(t, front))

	got, err := client.ListImages(t.Context(), &runtime.ListImagesRequest{})
	if err != nil || len(got.GetImages()) != 1 || got.GetImages()[0].GetId() != "its own" {
		t.Errorf("a call without an interceptor returns %v, %v", got, err)
	}
	stream, err := client.StreamImages(t.Context(), &runtime.StreamImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := stream.Recv(); err != nil || len(got.GetImages()) != 1 || got.GetImages()[0].GetId() != "its own" {
		t.Errorf("a stream without an interceptor returns %v, %v", got, err)
	}
	if _, err := client.ImageStatus(t.Context(), &runtime.ImageStatusRequest{}); err != nil {
		t.Error(err)
	}
	if want := []string{runtime.ImageService_ImageStatus_FullMethodName}; !slices.Equal(b.methods, want) {
		t.Errorf("calls on the connection: got %v, want %v", b.methods, want)
	}
	want := []string{runtime.ImageService_ListImages_FullMethodName, runtime.ImageService_ImageStatus_FullMethodName}
	if !slices.Equal(seen, want) {
		t.Errorf("calls of the server's interceptor: got %v, want %v", seen, want)
	}
}

// TestServicesMatchDescriptors checks that the generated service descriptions, for in-process calls, and the protobuf
// descriptors, for the proxy, have the same methods.
func TestServicesMatchDescriptors(t *testing.T) {
	generated := map[string]bool{}
	for _, service := range Services() {
		for _, m := range service.Methods {
			generated[service.ServiceName+"."+m.MethodName] = true
		}
		for _, s := range service.Streams {
			generated[service.ServiceName+"."+s.StreamName] = true
		}
	}
	all := methods(t)
	for _, m := range all {
		if !generated[string(m.FullName())] {
			t.Errorf("no generated service has %s", m.FullName())
		}
	}
	if len(generated) != len(all) {
		t.Errorf("generated services have %d methods, descriptors %d", len(generated), len(all))
	}
}
