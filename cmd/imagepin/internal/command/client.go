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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// call calls the control service with the global flags. Its errors are messages for users, not gRPC statuses.
func (a *app) call(ctx context.Context, cmd *cli.Command, do func(context.Context, api.ControlClient) error) error {
	return a.dial(ctx, cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
		return do(ctx, api.NewControlClient(conn))
	})
}

// dial is [app.call] for calls of several services.
func (a *app) dial(ctx context.Context, cmd *cli.Command, do func(context.Context, *grpc.ClientConn) error) error {
	address := strings.TrimPrefix(cmd.String("address"), "unix://")
	conn, err := connect(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = namespaces.WithNamespace(ctx, cmd.String("namespace"))
	ctx, cancel := withTimeout(ctx, cmd.Duration("timeout"))
	defer cancel()
	err = do(ctx, conn)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return a.explain(ctx, conn, err, address)
}

// withTimeout cancels ctx after timeout; zero means no timeout. It does not set a deadline: the server would apply a
// deadline too, and its answer, that the call is canceled, could arrive before ctx is done here.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if timeout <= 0 {
		return ctx, func() { cancel(nil) }
	}
	timer := time.AfterFunc(timeout, func() { cancel(fmt.Errorf("timed out after %s (--timeout)", timeout)) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

func connect(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///containerd",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, address) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Accept messages of any size that the server may send.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	)
}

// receiveAll merges the messages of a stream into all.
func receiveAll[M any, P interface {
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
