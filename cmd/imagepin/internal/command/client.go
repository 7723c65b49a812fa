package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/urfave/cli/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// reachTimeout is how long containerd's socket may take to accept a
// connection, when it is asked only for whether it does.
const reachTimeout = 5 * time.Second

// call calls the control service as the global flags say. Errors are for
// people: they are not gRPC statuses anymore.
func (a *app) call(ctx context.Context, cmd *cli.Command, do func(context.Context, api.ControlClient) error) error {
	address := strings.TrimPrefix(cmd.String("address"), "unix://")
	conn, err := connect(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = namespaces.WithNamespace(ctx, cmd.String("namespace"))
	ctx, cancel := withTimeout(ctx, cmd.Duration("timeout"))
	defer cancel()
	err = do(ctx, api.NewControlClient(conn))
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), context.Canceled):
		return errors.New("interrupted")
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return explain(err, address)
}

// withTimeout ends ctx after a time; zero is never. It is not a deadline, which
// the other side would keep too: its answer, that the call is cancelled, can
// come before ctx is done here.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if timeout <= 0 {
		return ctx, func() { cancel(nil) }
	}
	timer := time.AfterFunc(timeout, func() { cancel(fmt.Errorf("not done within %s (--timeout)", timeout)) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

func connect(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///containerd",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, address) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// An answer is as large as the other side may send.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	)
}

// joined adds up the messages of a list that comes in pieces.
func joined[M any, P interface {
	*M
	proto.Message
}](stream grpc.ServerStreamingClient[M], all P) error {
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		proto.Merge(all, P(piece))
	}
}

// explain says in words what a status means.
func explain(err error, address string) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.Unavailable: // containerd, or a registry that it asked?
		if err := reach(address); err != nil {
			return err
		}
	case codes.Unimplemented:
		if strings.HasPrefix(s.Message(), "unknown method") {
			return fmt.Errorf("the imagepin in the containerd at %s is older than this command: %s", address, s.Message())
		}
		return fmt.Errorf("the containerd at %s runs without imagepin, or imagepin is disabled or failed to load (ctr plugins ls says which)", address)
	}
	return errors.New(s.Message())
}

// reach fails, with the reason, where containerd does not accept connections.
func reach(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), reachTimeout)
	defer cancel()
	conn, err := dial(ctx, address)
	if err != nil {
		return fmt.Errorf("containerd cannot be reached, is it running? %w", err)
	}
	return conn.Close()
}
