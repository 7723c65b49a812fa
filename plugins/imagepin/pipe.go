package imagepin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/containerd/v2/defaults"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	// pipeSize is the buffer of the connection to the CRI service behind, in
	// bytes.
	pipeSize = 128 << 10
	// pipeWindow is how much of an answer may be under way there, in bytes.
	// Within a process there is no network to find out about first.
	pipeWindow = 1 << 20
)

// pipe is a connection within the process to the CRI service behind, which
// carries the caller's trace on. It implements [cri.Local].
type pipe struct {
	*grpc.ClientConn
	server *grpc.Server
	served chan error
	// callKey is the metadata that names a call which waits for its answer. It
	// is another one in every process, so that no client can name a call.
	callKey string
	calls   atomic.Uint64
	waiting sync.Map // of chan proto.Message, by the call's name
}

// newPipe serves a CRI service on a pipe.
func newPipe(behind registrar) (*pipe, error) {
	p := &pipe{served: make(chan error, 1), callKey: "imagepin-call-" + strings.ToLower(rand.Text())}
	listener := bufconn.Listen(pipeSize)
	p.server = grpc.NewServer(
		grpc.UnaryInterceptor(p.handOver),
		grpc.StatsHandler(otelgrpc.NewServerHandler()),
		grpc.InitialWindowSize(pipeWindow), grpc.InitialConnWindowSize(pipeWindow),
		grpc.MaxRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
		grpc.MaxSendMsgSize(defaults.DefaultMaxSendMsgSize),
	)
	if err := behind.Register(p.server); err != nil {
		return nil, fmt.Errorf("imagepin: serve the CRI behind: %w", err)
	}
	var err error
	p.ClientConn, err = grpc.NewClient("passthrough:///cri",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler()),
		grpc.WithInitialWindowSize(pipeWindow), grpc.WithInitialConnWindowSize(pipeWindow),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
			grpc.MaxCallSendMsgSize(defaults.DefaultMaxSendMsgSize),
		),
	)
	if err != nil {
		return nil, fmt.Errorf("imagepin: reach the CRI behind: %w", err)
	}
	go func() { p.served <- p.server.Serve(listener) }()
	return p, nil
}

// Call implements [cri.Local]: the answer does not cross the connection, only
// the news that it is there does.
func (p *pipe) Call(ctx context.Context, method string, req proto.Message) (proto.Message, error) {
	name := strconv.FormatUint(p.calls.Add(1), 36)
	answer := make(chan proto.Message, 1)
	p.waiting.Store(name, answer)
	defer p.waiting.Delete(name)
	if err := p.Invoke(metadata.AppendToOutgoingContext(ctx, p.callKey, name), method, req, &emptypb.Empty{}); err != nil {
		return nil, err
	}
	select {
	case resp := <-answer:
		return resp, nil
	default:
		return nil, status.Errorf(codes.Internal, "imagepin: no answer to %s was handed over", method)
	}
}

// handOver gives the answer to a call by [pipe.Call] to who waits for it, and
// sends an empty one in its place.
func (p *pipe) handOver(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	resp, err := handle(ctx, req)
	message, ok := resp.(proto.Message)
	if err != nil || !ok {
		return resp, err
	}
	for _, name := range metadata.ValueFromIncomingContext(ctx, p.callKey) {
		if answer, ok := p.waiting.LoadAndDelete(name); ok {
			answer.(chan proto.Message) <- message
			return &emptypb.Empty{}, nil
		}
	}
	return resp, nil
}

// Close ends the calls under way, and the connection.
func (p *pipe) Close() error {
	err := p.ClientConn.Close()
	p.server.Stop()
	return errors.Join(err, <-p.served)
}
