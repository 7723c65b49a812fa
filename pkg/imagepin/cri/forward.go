package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Upstream is containerd's own CRI service. The embedded connection is for imagepin's own calls.
type Upstream interface {
	grpc.ClientConnInterface
	// Service returns a description of a gRPC service that forwards every call. name is the full name of the service.
	// It fails if the service does not exist.
	Service(name string) (*grpc.ServiceDesc, error)
}

// Services returns the gRPC services of the CRI.
func Services() []*grpc.ServiceDesc {
	return []*grpc.ServiceDesc{&runtime.RuntimeService_ServiceDesc, &runtime.ImageService_ServiceDesc}
}

// Remote returns an [Upstream] that forwards over a connection. It forwards messages without decoding them, including
// methods and fields that a later CRI version adds.
func Remote(conn grpc.ClientConnInterface) Upstream { return remote{conn} }

type remote struct{ grpc.ClientConnInterface }

// Service implements [Upstream]. The methods are those of the service's protobuf descriptor.
func (r remote) Service(name string) (*grpc.ServiceDesc, error) {
	service, err := descriptorOf(name)
	if err != nil {
		return nil, err
	}
	desc := &grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil), Metadata: service.ParentFile().Path()}
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		if m.IsStreamingClient() || m.IsStreamingServer() {
			desc.Streams = append(desc.Streams, r.stream(name, m))
		} else {
			desc.Methods = append(desc.Methods, r.method(name, string(m.Name())))
		}
	}
	return desc, nil
}

func descriptorOf(service string) (protoreflect.ServiceDescriptor, error) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", service, err)
	}
	s, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is not a service", service)
	}
	return s, nil
}

// opaque is the type of messages that are only forwarded. A message without fields keeps everything that it is decoded
// from as unknown fields.
var opaque = (&emptypb.Empty{}).ProtoReflect().Type()

func (r remote) method(service, name string) grpc.MethodDesc {
	full := "/" + service + "/" + name
	return methodDesc(full, name, opaque, func(ctx context.Context, req proto.Message) (proto.Message, error) {
		resp := opaque.New().Interface()
		if err := r.Invoke(outgoing(ctx), full, req, resp); err != nil {
			return nil, err
		}
		return resp, nil
	})
}

// methodDesc describes a unary method whose requests have type in.
func methodDesc(full, name string, in protoreflect.MessageType, answer forward) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			req := in.New().Interface()
			if err := decode(req); err != nil {
				return nil, err
			}
			if interceptor == nil {
				return answer(ctx, req)
			}
			return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, func(ctx context.Context, req any) (any, error) {
				return answer(ctx, req.(proto.Message))
			})
		},
	}
}

func (r remote) stream(service string, m protoreflect.MethodDescriptor) grpc.StreamDesc {
	desc := grpc.StreamDesc{StreamName: string(m.Name()), ServerStreams: m.IsStreamingServer(), ClientStreams: m.IsStreamingClient()}
	upstream := desc
	desc.Handler = func(_ any, stream grpc.ServerStream) error {
		return pipe(r, stream, &upstream, "/"+service+"/"+desc.StreamName)
	}
	return desc
}

// Forward forwards a call of any method, with any messages, to a server.
func Forward(conn grpc.ClientConnInterface, stream grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(stream)
	if !ok {
		return status.Error(codes.Internal, "imagepin: call has no method")
	}
	return pipe(conn, stream, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
}

// pipe forwards a stream in both directions until upstream ends it.
func pipe(conn grpc.ClientConnInterface, stream grpc.ServerStream, desc *grpc.StreamDesc, method string) error {
	ctx, cancel := context.WithCancel(outgoing(stream.Context()))
	defer cancel()
	client, err := conn.NewStream(ctx, desc, method)
	if err != nil {
		return err
	}
	go func() {
		// This goroutine ends when the caller closes its side, or when the context of the stream ends.
		for {
			req := opaque.New().Interface()
			if err := stream.RecvMsg(req); err != nil {
				if errors.Is(err, io.EOF) {
					_ = client.CloseSend()
				} else {
					cancel()
				}
				return
			}
			if err := client.SendMsg(req); err != nil {
				return // RecvMsg below returns the error
			}
		}
	}()
	if header, err := client.Header(); err == nil && len(header) > 0 {
		if err := stream.SetHeader(header); err != nil {
			return err
		}
	}
	for {
		resp := opaque.New().Interface()
		if err := client.RecvMsg(resp); err != nil {
			stream.SetTrailer(client.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := stream.SendMsg(resp); err != nil {
			return err
		}
	}
}

// outgoing copies the caller's metadata to the outgoing call, except for the keys that belong to the caller's
// connection.
func outgoing(ctx context.Context) context.Context {
	in, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ctx
	}
	out := make(metadata.MD, len(in))
	for k, v := range in {
		if !strings.HasPrefix(k, ":") && k != "content-type" && k != "user-agent" {
			out[k] = v
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}
