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

// method is a method of the control service, for example api.ControlClient.Resolve.
type method[Q, R any] func(api.ControlClient, context.Context, Q, ...grpc.CallOption) (R, error)

// show calls a method, and prints its response in the format that --output selects, with text for a table. Its errors do
// not contain the password of a request.
func show[Q, R any](ctx context.Context, a *app, cmd *cli.Command, do method[Q, R], request Q, text func(style, R) error) (R, error) {
	var response R
	err := a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) (err error) {
		response, err = do(c, ctx, request)
		return err
	})
	if err == nil {
		err = a.print(cmd, response, func() error { return text(a.style(cmd), response) })
	}
	if q, ok := any(request).(interface{ GetCredential() *api.Credential }); ok {
		err = redactPassword(err, q.GetCredential())
	}
	return response, err
}

// merged makes a method of a stream: its response is that of all messages. With an error, it is that of the messages
// before.
func merged[Q, M any, P interface {
	*M
	proto.Message
}](open method[Q, grpc.ServerStreamingClient[M]]) method[Q, P] {
	return func(c api.ControlClient, ctx context.Context, request Q, opts ...grpc.CallOption) (P, error) {
		all := P(new(M))
		stream, err := open(c, ctx, request, opts...)
		for err == nil {
			var piece P
			if piece, err = stream.Recv(); err == nil {
				proto.Merge(all, piece)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return all, err
	}
}

// Methods that send lists in pieces.
var (
	listImages = merged(api.ControlClient.StreamImages)
	listPins   = merged(api.ControlClient.StreamPins)
	checkPins  = merged(api.ControlClient.CheckPins)
)
