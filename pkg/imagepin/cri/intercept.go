package cri

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// forward sends a request to upstream.
type forward func(ctx context.Context, req proto.Message) (proto.Message, error)

// unaryInterceptor answers a unary method in place of upstream.
type unaryInterceptor func(ctx context.Context, req proto.Message, next forward) (proto.Message, error)

// streamInterceptor answers a streaming method in place of upstream.
type streamInterceptor func(stream grpc.ServerStream) error

// intercept converts a typed function to an interceptor.
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

// interceptors answer some methods of a service in place of upstream.
type interceptors struct {
	unary   map[string]unaryInterceptor
	streams map[string]streamInterceptor
	// endless answer streams that do not end by themselves: they notice a retirement themselves.
	endless map[string]streamInterceptor
	// conn is the connection to upstream.
	conn grpc.ClientConnInterface
	// guard wraps the answer to every intercepted call. req is nil for a stream.
	guard func(ctx context.Context, method string, req proto.Message, call func() error) error
	// retirement reports when calls are no longer intercepted.
	retirement *retirement
}

// apply returns a copy of a service with its intercepted methods replaced. It fails if the service does not have one of
// them.
func (i *interceptors) apply(service *grpc.ServiceDesc) (*grpc.ServiceDesc, error) {
	d, err := descriptorOf(service.ServiceName)
	if err != nil {
		return nil, err
	}
	found := 0
	desc := *service
	desc.Methods, desc.Streams = slices.Clone(service.Methods), slices.Clone(service.Streams)
	for n, m := range desc.Methods {
		if answer := i.unary[m.MethodName]; answer != nil {
			found++
			if desc.Methods[n], err = i.method(d.Methods().ByName(protoreflect.Name(m.MethodName)), answer); err != nil {
				return nil, err
			}
		}
	}
	for n, s := range desc.Streams {
		if answer := i.streams[s.StreamName]; answer != nil {
			found++
			desc.Streams[n].Handler = i.stream(s, answer, i.retirement)
		}
		if answer := i.endless[s.StreamName]; answer != nil {
			found++
			desc.Streams[n].Handler = i.stream(s, answer, nil)
		}
	}
	if found != len(i.unary)+len(i.streams)+len(i.endless) {
		return nil, fmt.Errorf("service %s does not have all intercepted methods", service.ServiceName)
	}
	return &desc, nil
}

// method returns a unary method that is answered by an interceptor.
func (i *interceptors) method(m protoreflect.MethodDescriptor, answer unaryInterceptor) (grpc.MethodDesc, error) {
	in, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		return grpc.MethodDesc{}, fmt.Errorf("method %s: %w", m.FullName(), err)
	}
	out, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		return grpc.MethodDesc{}, fmt.Errorf("method %s: %w", m.FullName(), err)
	}
	name := string(m.Name())
	full := fmt.Sprintf("/%s/%s", m.Parent().FullName(), name)
	next := func(ctx context.Context, req proto.Message) (proto.Message, error) {
		resp := out.New().Interface()
		if err := i.conn.Invoke(outgoing(ctx), full, req, resp); err != nil {
			return nil, err
		}
		return resp, nil
	}
	return methodDesc(full, name, in, func(ctx context.Context, req proto.Message) (resp proto.Message, _ error) {
		leave, ok := i.retirement.enter()
		if !ok {
			return next(ctx, req)
		}
		defer leave()
		err := i.guard(ctx, name, req, func() (err error) {
			resp, err = answer(ctx, req, next)
			return err
		})
		return resp, err
	}), nil
}

// stream returns the handler of a streaming method that is answered by an interceptor until a retirement, which can be nil.
func (i *interceptors) stream(s grpc.StreamDesc, answer streamInterceptor, r *retirement) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		leave, ok := r.enter()
		if !ok {
			return s.Handler(srv, stream)
		}
		defer leave()
		return i.guard(stream.Context(), s.StreamName, nil, func() error { return answer(stream) })
	}
}
