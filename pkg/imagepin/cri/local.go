package cri

import (
	"context"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Local is a connection to a CRI service of this process. What is only passed on
// does not cross it: it is answered by the service itself, as its own server
// would have it answered.
type Local interface {
	grpc.ClientConnInterface
	// Implementation is what answers the calls of a gRPC service, given by its
	// full name: what the code generated for the service registers.
	Implementation(service string) any
}

// Services are the gRPC services of the CRI.
func Services() []*grpc.ServiceDesc {
	return []*grpc.ServiceDesc{&runtime.RuntimeService_ServiceDesc, &runtime.ImageService_ServiceDesc}
}

// local gives the methods of the service behind by their names, where it is one
// of this process. They are answered by it whatever they are registered with.
func (p *proxy) local() (unary map[string]grpc.MethodDesc, streams map[string]grpc.StreamDesc) {
	l, ok := p.behind.(Local)
	if !ok {
		return nil, nil
	}
	impl := l.Implementation(p.service)
	unary, streams = make(map[string]grpc.MethodDesc), make(map[string]grpc.StreamDesc)
	for _, service := range Services() {
		if service.ServiceName != p.service {
			continue
		}
		for _, m := range service.Methods {
			answer := m.Handler
			m.Handler = func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
				return answer(impl, ctx, decode, interceptor)
			}
			unary[m.MethodName] = m
		}
		for _, s := range service.Streams {
			answer := s.Handler
			s.Handler = func(_ any, stream grpc.ServerStream) error { return answer(impl, stream) }
			streams[s.StreamName] = s
		}
	}
	return unary, streams
}
