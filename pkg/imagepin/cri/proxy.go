package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"
)

// forward sends a request to the service behind.
type forward func(ctx context.Context, req proto.Message) (proto.Message, error)

// unaryInterceptor answers a unary method in place of the service behind.
type unaryInterceptor func(ctx context.Context, req proto.Message, next forward) (proto.Message, error)

// streamInterceptor answers a streaming method in place of the service behind.
type streamInterceptor func(stream grpc.ServerStream) error

// intercept makes a typed function an interceptor.
func intercept[Req, Resp proto.Message](f func(ctx context.Context, req Req, next func(context.Context, Req) (Resp, error)) (Resp, error)) unaryInterceptor {
	return func(ctx context.Context, req proto.Message, next forward) (proto.Message, error) {
		return f(ctx, req.(Req), func(ctx context.Context, req Req) (Resp, error) {
			resp, err := next(ctx, req)
			if err != nil {
				var none Resp
				return none, err
			}
			return resp.(Resp), nil
		})
	}
}

// proxy describes a gRPC service that passes every method of a service on to a
// connection, except for what is intercepted. It is made from the service's
// protobuf descriptor: a method that a later CRI adds passes through without a
// change here.
type proxy struct {
	service string // full name, as runtime.v1.ImageService
	behind  grpc.ClientConnInterface
	unary   map[string]unaryInterceptor
	streams map[string]streamInterceptor
	// guard wraps the answer to every intercepted call.
	guard func(ctx context.Context, method string, call func() error) error
	// retirement says when nothing is intercepted any more.
	retirement *retirement
}

// opaque is the type of the messages that are only passed on. One of no fields
// keeps all that it is read from, and is read and written without a look inside.
var opaque = (&emptypb.Empty{}).ProtoReflect().Type()

// serviceDesc builds what a grpc.Server registers.
func (p *proxy) serviceDesc() (*grpc.ServiceDesc, error) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(p.service))
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", p.service, err)
	}
	service, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is not a service", p.service)
	}
	unary, streams := maps.Clone(p.unary), maps.Clone(p.streams)
	localUnary, localStreams := p.local()
	desc := &grpc.ServiceDesc{ServiceName: p.service, HandlerType: (*any)(nil), Metadata: service.ParentFile().Path()}
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		name := string(m.Name())
		if local, ok := localUnary[name]; ok && unary[name] == nil {
			desc.Methods = append(desc.Methods, local)
			continue
		}
		if local, ok := localStreams[name]; ok && streams[name] == nil {
			desc.Streams = append(desc.Streams, local)
			continue
		}
		in, out := opaque, opaque
		if unary[name] != nil {
			if in, err = protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName()); err != nil {
				return nil, fmt.Errorf("method %s: %w", m.FullName(), err)
			}
			if out, err = protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName()); err != nil {
				return nil, fmt.Errorf("method %s: %w", m.FullName(), err)
			}
		}
		if m.IsStreamingClient() || m.IsStreamingServer() {
			desc.Streams = append(desc.Streams, p.streamDesc(m, streams[name]))
			delete(streams, name)
			continue
		}
		desc.Methods = append(desc.Methods, p.methodDesc(name, unary[name], in, out))
		delete(unary, name)
	}
	for name := range unary {
		return nil, fmt.Errorf("service %s has no method %s", p.service, name)
	}
	for name := range streams {
		return nil, fmt.Errorf("service %s has no stream %s", p.service, name)
	}
	return desc, nil
}

func (p *proxy) methodDesc(name string, answer unaryInterceptor, in, out protoreflect.MessageType) grpc.MethodDesc {
	full := "/" + p.service + "/" + name
	next := func(ctx context.Context, req proto.Message) (proto.Message, error) {
		resp := out.New().Interface()
		if err := p.behind.Invoke(outgoing(ctx), full, req, resp); err != nil {
			return nil, err
		}
		return resp, nil
	}
	handle := func(ctx context.Context, req any) (any, error) {
		message := req.(proto.Message)
		if answer == nil {
			return next(ctx, message)
		}
		leave, ok, err := p.retirement.enter(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			return next(ctx, message)
		}
		defer leave()
		var resp proto.Message
		err = p.guard(ctx, name, func() (err error) {
			resp, err = answer(ctx, message, next)
			return err
		})
		return resp, err
	}
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			req := in.New().Interface()
			if err := decode(req); err != nil {
				return nil, err
			}
			if interceptor == nil {
				return handle(ctx, req)
			}
			return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, handle)
		},
	}
}

func (p *proxy) streamDesc(m protoreflect.MethodDescriptor, answer streamInterceptor) grpc.StreamDesc {
	desc := grpc.StreamDesc{
		StreamName:    string(m.Name()),
		ServerStreams: m.IsStreamingServer(),
		ClientStreams: m.IsStreamingClient(),
	}
	full := "/" + p.service + "/" + desc.StreamName
	behind := desc
	desc.Handler = func(_ any, stream grpc.ServerStream) error {
		if answer == nil {
			return p.pipe(stream, &behind, full)
		}
		leave, ok, err := p.retirement.enter(stream.Context())
		if err != nil {
			return err
		}
		if ok {
			defer leave()
			return p.guard(stream.Context(), desc.StreamName, func() error { return answer(stream) })
		}
		return p.pipe(stream, &behind, full)
	}
	return desc
}

// pipe passes a stream on in both directions until the service behind ends it.
func (p *proxy) pipe(stream grpc.ServerStream, desc *grpc.StreamDesc, method string) error {
	ctx, cancel := context.WithCancel(outgoing(stream.Context()))
	defer cancel()
	client, err := p.behind.NewStream(ctx, desc, method)
	if err != nil {
		return err
	}
	go func() {
		// Ends when the caller has said all, or when the stream does, which
		// its context's end brings about.
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
				return // RecvMsg below says why
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

// PassOn passes a call of a method that is not known here on to the service
// behind, whatever its messages are.
func (s *Service) PassOn(stream grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(stream)
	if !ok {
		return status.Error(codes.Internal, "imagepin: a call without a method")
	}
	p := &proxy{behind: s.base.Upstream}
	return p.pipe(stream, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
}

// outgoing passes the caller's metadata on, except for what belongs to its
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
