package imagepin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/containerd/containerd/v2/defaults"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// pipeSize is the buffer size of an in-process connection, in bytes, for each direction: what gRPC writes at once.
const pipeSize = 32 << 10

// pipe is a connection to an in-process server.
type pipe struct {
	*grpc.ClientConn
	server *grpc.Server
	served chan error
}

// newPipe serves a service on a pipe that propagates the caller's trace.
func newPipe(service registrar, options ...grpc.ServerOption) (*pipe, error) {
	p := &pipe{served: make(chan error, 1)}
	p.server = grpc.NewServer(append(options,
		grpc.StatsHandler(otelgrpc.NewServerHandler()),
		grpc.MaxRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
		grpc.MaxSendMsgSize(defaults.DefaultMaxSendMsgSize),
	)...)
	if err := service.Register(p.server); err != nil {
		return nil, fmt.Errorf("imagepin: serve the upstream CRI: %w", err)
	}
	listener := bufconn.Listen(pipeSize)
	var err error
	p.ClientConn, err = grpc.NewClient("passthrough:///cri",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler()),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
			grpc.MaxCallSendMsgSize(defaults.DefaultMaxSendMsgSize),
		),
	)
	if err != nil {
		return nil, fmt.Errorf("imagepin: connect to the upstream CRI: %w", err)
	}
	go func() { p.served <- p.server.Serve(listener) }()
	return p, nil
}

// Close ends the calls in progress, and closes the connection.
func (p *pipe) Close() error {
	err := p.ClientConn.Close()
	p.server.Stop()
	if failed := <-p.served; !errors.Is(failed, grpc.ErrServerStopped) {
		err = errors.Join(err, failed)
	}
	return err
}

// lazyPipe is a pipe that is opened when it is first used. Its server and its client run several goroutines.
type lazyPipe struct {
	service registrar

	mu     sync.Mutex
	pipe   *pipe // nil if it was not used
	closed bool
}

// open returns the pipe. It fails with codes.Unavailable after Close.
func (l *lazyPipe) open() (_ *pipe, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, status.Error(codes.Unavailable, "containerd is stopping")
	}
	if l.pipe == nil {
		l.pipe, err = newPipe(l.service)
	}
	return l.pipe, err
}

// Close closes the pipe, which is not opened again.
func (l *lazyPipe) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.pipe == nil {
		return nil
	}
	return l.pipe.Close()
}
