package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Call is a completed CRI call of kubelet.
type Call struct {
	// Method is the method without its service, such as "PullImage".
	Method string
	// Response is empty if Err is not nil.
	Request, Response proto.Message
	Err               error
}

// recorded are the methods that the proxy records: those that involve images.
var recorded = map[string]func() (request, response proto.Message){
	"RunPodSandbox": func() (proto.Message, proto.Message) {
		return &cri.RunPodSandboxRequest{}, &cri.RunPodSandboxResponse{}
	},
	"CreateContainer": func() (proto.Message, proto.Message) {
		return &cri.CreateContainerRequest{}, &cri.CreateContainerResponse{}
	},
	"ImageStatus": func() (proto.Message, proto.Message) { return &cri.ImageStatusRequest{}, &cri.ImageStatusResponse{} },
	"PullImage":   func() (proto.Message, proto.Message) { return &cri.PullImageRequest{}, &cri.PullImageResponse{} },
	"ListImages":  func() (proto.Message, proto.Message) { return &cri.ListImagesRequest{}, &cri.ListImagesResponse{} },
	"RemoveImage": func() (proto.Message, proto.Message) { return &cri.RemoveImageRequest{}, &cri.RemoveImageResponse{} },
}

// Proxy forwards kubelet's calls to containerd unchanged and records them.
type Proxy struct {
	server *grpc.Server
	conn   *grpc.ClientConn
	served chan struct{}

	mu    sync.Mutex
	calls []Call
	all   map[string]int
}

// startProxy forwards the calls on a socket to the socket upstream.
func startProxy(socket, upstream string) (*Proxy, error) {
	conn, err := grpc.NewClient("unix://"+upstream, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(64<<20), grpc.WaitForReady(false)),
		// These tests kill and restart containerd.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}, MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(socket); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	p := &Proxy{conn: conn, served: make(chan struct{}), all: map[string]int{}}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(p.forward), grpc.MaxRecvMsgSize(64<<20))
	go func() {
		defer close(p.served)
		_ = p.server.Serve(l) // returns when the server is stopped
	}()
	return p, nil
}

// Calls returns the recorded calls of a method, in the order of their responses. If method is empty, it returns all.
func (p *Proxy) Calls(method string) []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	var calls []Call
	for _, c := range p.calls {
		if method == "" || c.Method == method {
			calls = append(calls, c)
		}
	}
	return calls
}

// Methods returns the number of calls of each method, such as "runtime.v1.ImageService/PullImage".
func (p *Proxy) Methods() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]int{}
	for m, n := range p.all {
		all[m] = n
	}
	return all
}

func (p *Proxy) close() error {
	p.server.Stop()
	<-p.served
	return p.conn.Close()
}

func (p *Proxy) forward(_ any, in grpc.ServerStream) error {
	full, ok := grpc.MethodFromServerStream(in)
	if !ok {
		return fmt.Errorf("call without a method")
	}
	md, _ := metadata.FromIncomingContext(in.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(in.Context(), md))
	defer cancel()
	out, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
	if err != nil {
		return err
	}
	// No CRI method has a stream of requests: there is one request, followed by the responses.
	var request, response []byte
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	if err := out.SendMsg(&request); err != nil && err != io.EOF {
		return err
	}
	if err := out.CloseSend(); err != nil {
		return err
	}
	for {
		err := out.RecvMsg(&response)
		if err == io.EOF {
			p.record(full, request, response, nil)
			return nil
		}
		if err != nil {
			p.record(full, request, nil, err)
			return err
		}
		if err := in.SendMsg(&response); err != nil {
			return err
		}
	}
}

func (p *Proxy) record(full string, request, response []byte, err error) {
	method := full[strings.LastIndex(full, "/")+1:]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[strings.TrimPrefix(full, "/")]++
	make, ok := recorded[method]
	if !ok {
		return
	}
	c := Call{Method: method, Err: err}
	c.Request, c.Response = make()
	if e := proto.Unmarshal(request, c.Request); e != nil {
		c.Err = e
	}
	if e := proto.Unmarshal(response, c.Response); e != nil {
		c.Err = e
	}
	p.calls = append(p.calls, c)
}

// raw is a codec that keeps messages as bytes.
type raw struct{}

var _ encoding.CodecV2 = raw{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
