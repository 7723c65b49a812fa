package imagepin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/imagepin/imagepin/pkg/imagepin/cri"
)

// local is an in-process upstream. Forwarded calls and imagepin's own calls run directly in the caller's goroutine and
// context. Streams that imagepin opens itself use a pipe. Calls wait until local is connected. It implements
// [cri.Upstream].
type local struct {
	connected chan struct{} // closed when the fields below are set

	streams         *lazyPipe
	implementations map[string]any    // by service name
	methods         map[string]method // by /service/method
}

type method struct {
	implementation any
	answer         grpc.MethodHandler
}

func newLocal() *local { return &local{connected: make(chan struct{})} }

// connect sets the service that answers the calls.
func (l *local) connect(upstream registrar) (err error) {
	if l.implementations, err = implementations(upstream); err != nil {
		return err
	}
	l.methods = make(map[string]method)
	for _, service := range cri.Services() {
		for _, m := range service.Methods {
			l.methods[fullName(service, m)] = method{l.implementations[service.ServiceName], m.Handler}
		}
	}
	l.streams = &lazyPipe{service: upstream}
	close(l.connected)
	return nil
}

// wait waits until l is connected.
func (l *local) wait(ctx context.Context) error {
	select {
	case <-l.connected:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// Close ends the streams in progress.
func (l *local) Close() error {
	if l.streams == nil {
		return nil
	}
	return l.streams.Close()
}

// Service implements [cri.Upstream]. Calls are answered by upstream's implementation, on any server that the service is
// registered with. Service does not wait until l is connected, but the calls do.
func (l *local) Service(name string) (*grpc.ServiceDesc, error) {
	for _, service := range cri.Services() {
		if service.ServiceName == name {
			return l.bound(service), nil
		}
	}
	return nil, fmt.Errorf("imagepin: the CRI has no %s", name)
}

// bound returns a service whose methods are answered by upstream's implementation.
func (l *local) bound(service *grpc.ServiceDesc) *grpc.ServiceDesc {
	desc := *service
	desc.HandlerType, desc.Methods, desc.Streams = (*any)(nil), slices.Clone(service.Methods), slices.Clone(service.Streams)
	for i, m := range desc.Methods {
		desc.Methods[i].Handler = func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			if err := l.wait(ctx); err != nil {
				return nil, err
			}
			return m.Handler(l.implementations[service.ServiceName], ctx, decode, interceptor)
		}
	}
	for i, s := range desc.Streams {
		desc.Streams[i].Handler = func(_ any, stream grpc.ServerStream) error {
			if err := l.wait(stream.Context()); err != nil {
				return err
			}
			return s.Handler(l.implementations[service.ServiceName], stream)
		}
	}
	return &desc
}

// Invoke implements grpc.ClientConnInterface. It copies the answer, because upstream may still use its own. Options
// apply to connections only, and are ignored here.
func (l *local) Invoke(ctx context.Context, name string, args, reply any, options ...grpc.CallOption) error {
	if err := l.wait(ctx); err != nil {
		return err
	}
	m, ok := l.methods[name]
	if !ok {
		p, err := l.streams.open()
		if err != nil {
			return err
		}
		return p.Invoke(ctx, name, args, reply, options...)
	}
	read := func(req any) error {
		proto.Merge(req.(proto.Message), args.(proto.Message))
		return nil
	}
	resp, err := m.answer(m.implementation, ctx, read, nil)
	if err != nil {
		return asStatus(err)
	}
	proto.Merge(reply.(proto.Message), resp.(proto.Message))
	return nil
}

// NewStream implements grpc.ClientConnInterface.
func (l *local) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	p, err := l.streams.open()
	if err != nil {
		return nil, err
	}
	return p.NewStream(ctx, desc, name, options...)
}

// asStatus converts an error in the same way as a gRPC server.
func asStatus(err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.FromContextError(err).Err()
}

// implementations returns the implementations of the CRI's services. A gRPC server does not expose its registered
// services, but its interceptor is called with the implementation. So implementations makes one call of each service,
// which the interceptor answers in its place.
func implementations(upstream registrar) (_ map[string]any, err error) {
	var last any
	probe, err := newPipe(upstream, grpc.UnaryInterceptor(
		func(_ context.Context, _ any, call *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			last = call.Server
			return &emptypb.Empty{}, nil
		}))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, probe.Close()) }()
	all := make(map[string]any)
	for _, service := range cri.Services() {
		if err := probe.Invoke(context.Background(), fullName(service, service.Methods[0]), &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			return nil, fmt.Errorf("imagepin: the upstream CRI has no %s: %w", service.ServiceName, err)
		}
		all[service.ServiceName] = last
	}
	return all, nil
}

func fullName(service *grpc.ServiceDesc, m grpc.MethodDesc) string {
	return "/" + service.ServiceName + "/" + m.MethodName
}
