package peers

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// combined serves a CRI and the API of containerd on one socket. The CRI tests expect both on one, but imagepin serve has only the
// CRI on its own. It returns the directory of the socket, which has the name of containerd's.
func combined(cri string) (string, error) {
	toCRI, err := rawClient(cri)
	if err != nil {
		return "", err
	}
	toContainerd, err := rawClient(containerdAddress)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "combined")
	if err := os.Mkdir(dir, 0o711); err != nil {
		return "", err
	}
	l, err := net.Listen("unix", filepath.Join(dir, filepath.Base(containerdAddress)))
	if err != nil {
		return "", err
	}
	srv := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.MaxRecvMsgSize(16<<20), grpc.MaxSendMsgSize(16<<20), grpc.UnknownServiceHandler(func(_ any, in grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(in)
		if strings.HasPrefix(method, "/runtime.v1.") {
			return forward(in, toCRI, method)
		}
		return forward(in, toContainerd, method)
	}))
	go func() { _ = srv.Serve(l) }() // until the process exits
	return dir, nil
}

func rawClient(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)))
}

// forward forwards a call in both directions until the server has answered.
func forward(in grpc.ServerStream, to *grpc.ClientConn, method string) error {
	md, _ := metadata.FromIncomingContext(in.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(in.Context(), md))
	defer cancel()
	out, err := to.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		for {
			var m mem.BufferSlice
			if err := in.RecvMsg(&m); err != nil {
				if err != io.EOF {
					cancel()
				}
				_ = out.CloseSend()
				return
			}
			if err := out.SendMsg(&m); err != nil {
				return // RecvMsg of out returns the reason
			}
		}
	}()
	for first := true; ; first = false {
		var m mem.BufferSlice
		err := out.RecvMsg(&m)
		if first {
			if h, err := out.Header(); err == nil {
				_ = in.SetHeader(h)
			}
		}
		if err != nil {
			in.SetTrailer(out.Trailer())
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := in.SendMsg(&m); err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
	}
}

// raw is a codec that leaves messages as they are.
type raw struct{}

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	b := *v.(*mem.BufferSlice)
	b.Ref()
	return b, nil
}

func (raw) Unmarshal(b mem.BufferSlice, v any) error {
	b.Ref()
	*v.(*mem.BufferSlice) = b
	return nil
}

func (raw) Name() string { return "proto" }
