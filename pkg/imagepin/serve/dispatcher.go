//go:build unix

package serve

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

// dispatcher answers the calls of a gRPC server. Each call goes to the backend that is connected when it arrives.
type dispatcher struct {
	connected atomic.Pointer[backend]
	// cutStreams ends the streams that do not end by themselves, and cutAll ends all remaining calls.
	cutStreams, cutAll context.Context
}

// backend answers calls.
type backend struct {
	unary       map[string]method[grpc.MethodDesc]
	streams     map[string]method[grpc.StreamDesc]
	rest        grpc.StreamHandler
	unavailable error // returned by every call; nil if calls are answered
}

type method[Desc any] struct {
	desc Desc
	impl any
}

// backendOf returns the backend of a service. It forwards methods of the CRI that neither the service nor this version
// of the CRI has.
func backendOf(s *node.Service, upstream grpc.ClientConnInterface) (*backend, error) {
	l := &backend{
		unary: make(map[string]method[grpc.MethodDesc]), streams: make(map[string]method[grpc.StreamDesc]),
		rest: func(_ any, stream grpc.ServerStream) error { return cri.Forward(upstream, stream) },
	}
	return l, s.Register(l)
}

// RegisterService implements grpc.ServiceRegistrar.
func (l *backend) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		l.unary["/"+desc.ServiceName+"/"+m.MethodName] = method[grpc.MethodDesc]{m, impl}
	}
	for _, m := range desc.Streams {
		l.streams["/"+desc.ServiceName+"/"+m.StreamName] = method[grpc.StreamDesc]{m, impl}
	}
}

// connect makes l answer the calls that arrive from now on.
func (x *dispatcher) connect(l *backend) { x.connected.Store(l) }

// unavailable makes calls that arrive from now on fail with Unavailable.
func (x *dispatcher) unavailable(why error) {
	x.connect(&backend{unavailable: status.Errorf(codes.Unavailable, "imagepin: %v", why)})
}

// criPrefix is the prefix of the full name of every CRI method, in any version.
const criPrefix = "/runtime."

// endlessStreams are the streams that do not end by themselves.
var endlessStreams = map[string]bool{"/runtime.v1.RuntimeService/GetContainerEvents": true, api.Control_Events_FullMethodName: true}

// handle is a grpc.StreamHandler for calls of every method. A unary call is a stream with one message in each
// direction.
func (x *dispatcher) handle(_ any, stream grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(stream)
	cut := x.cutAll
	if endlessStreams[name] {
		cut = x.cutStreams
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(cut, cancel)()
	err := x.connected.Load().answer(name, &cancellableStream{stream, ctx})
	if err != nil && cut.Err() != nil {
		return status.Error(codes.Unavailable, "imagepin is stopping")
	}
	return err
}

// cancellableStream is a stream with another context.
type cancellableStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (c *cancellableStream) Context() context.Context { return c.ctx }

func (l *backend) answer(name string, stream grpc.ServerStream) error {
	if l.unavailable != nil {
		return l.unavailable
	}
	if m, ok := l.unary[name]; ok {
		resp, err := m.desc.Handler(m.impl, stream.Context(), stream.RecvMsg, nil)
		if err != nil {
			return err
		}
		return stream.SendMsg(resp)
	}
	if m, ok := l.streams[name]; ok {
		return m.desc.Handler(m.impl, stream)
	}
	if strings.HasPrefix(name, criPrefix) {
		return l.rest(nil, stream)
	}
	return status.Error(codes.Unimplemented, fmt.Sprintf("imagepin has no method %s; containerd's own API is on containerd's socket", name))
}
