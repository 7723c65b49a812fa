package sim

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/platforms"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
	"github.com/imagepin/imagepin/plugins/imagepin/fleet"
)

// process is one run of imagepin, or of containerd's CRI, from its start to its kill.
type process struct {
	w        *world
	dead     bool // guarded by the scheduler
	away     bool // containerd does not run; guarded by the scheduler
	remote   bool // its calls of containerd cross a socket, and fail if their context has ended
	service  *node.Service
	setup    node.Setup
	services map[string]*grpc.ServiceDesc
	impl     map[string]any
	ctx      context.Context
	cancel   context.CancelFunc
	ended    chan struct{}
}

// pinTTL is how long an unused pin is kept.
const pinTTL = 24 * time.Hour

// handlers are the handlers of the node: the default, one with another snapshotter, and one with another platform.
var handlers = []string{"runc", "second", "foreign"}

func native() string { return platforms.Format(platforms.Normalize(platforms.DefaultSpec())) }

func foreign() string {
	if strings.HasPrefix(native(), "linux/arm64") {
		return "linux/amd64"
	}
	return "linux/arm64"
}

// target returns the current target of a handler, in the form of key labels.
func (w *world) target(handler string) (platform, snapshotter string) {
	switch {
	case handler == "second":
		return native(), "second"
	case handler == "foreign" && w.reconfigured.Load():
		return foreign(), "second"
	case handler == "foreign":
		return foreign(), "first"
	}
	return native(), "first"
}

// startProcess starts imagepin.
func (w *world) startProcess() error {
	p := &process{w: w, remote: w.choice.socket, services: make(map[string]*grpc.ServiceDesc), impl: make(map[string]any), ended: make(chan struct{})}
	var section config.Table
	if t, err := config.DefaultTable(); err == nil {
		section = *t
	}
	section["version_consistency"] = w.choice.consistency
	section["retain"] = w.choice.retain
	section["pull_behavior"] = w.choice.behavior
	section["max_concurrent_unpacks"] = int64(1)
	section["pin_ttl"] = pinTTL.String()
	if w.choice.cap > 0 {
		section["max_pins_per_namespace"] = int64(w.choice.cap)
	}
	settings, err := section.Check()
	if err != nil {
		return err
	}
	var criConfig config.CRI
	criConfig.Images.Snapshotter = "first"
	criConfig.Images.ImagePullProgressTimeout = "0s"
	criConfig.Images.MaxConcurrentDownloads = 3
	criConfig.Images.StatsCollectPeriod = 10
	criConfig.Images.DiscardUnpackedLayers = w.choice.discard
	_, foreignOn := w.target("foreign")
	criConfig.Images.RuntimePlatforms = map[string]config.Platform{"foreign": {Platform: foreign(), Snapshotter: foreignOn}}
	criConfig.Runtime.Containerd.DefaultRuntimeName = "runc"
	criConfig.Runtime.Containerd.Runtimes = map[string]config.Handler{
		"runc": {}, "second": {Snapshotter: "second"}, "foreign": {Snapshotter: foreignOn},
	}
	loaded := make(map[string]node.Snapshotter)
	for _, name := range snapshotters {
		loaded[name] = node.Snapshotter{Root: "/nowhere/" + name}
	}
	p.setup = node.Setup{Settings: settings, CRI: criConfig, Snapshotters: loaded, Verifiers: w.verifiers(p)}
	services := node.Containerd{
		Records:    &records{imageStore{Store: w.images, w: w, owner: p, name: "images"}},
		Pins:       &imageStore{Store: w.images, w: w, owner: p, name: "pins"},
		Content:    &contentStore{Store: w.blobs, w: w, owner: p},
		Leases:     &leaseManager{Manager: w.leases, w: w, owner: p},
		Namespaces: namespaceStore{w},
		Events:     eventService{w, p},
		Applier:    applier{w, p},
		Snapshots: func(name string) snapshots.Snapshotter {
			return &snapshotter{Snapshotter: w.db.Snapshotter(name), w: w, owner: p, name: name}
		},
	}
	if w.choice.walking {
		archives := func(from content.Provider) diff.Applier { return archiveApplier{w, p, from} }
		services.Walking = &node.Walking{Applier: download.NewApplier(services.Content, archives), Default: true}
	}
	if w.choice.socket {
		services = node.Uninterrupted(services)
	} else {
		services.Holder = w.roots.begin()
		services.Collect = func(ctx context.Context) error { return w.collectSlowly(ctx, p, "collect") }
	}
	n, err := node.New(node.Config{
		Containerd: services,
		Setup:      p.setup, Parts: node.Parts{Fleet: fleet.Open},
		NodeKey: filepath.Join(w.dir, "node.key"), Transport: w.registry.of(p),
		KeysARecord: int(w.seed % 3), // low, so that the few tags of this node reach it; 0 is the default
	})
	if err != nil {
		return err
	}
	if p.service, err = n.Serve(cri.Remote(upstream{w, p})); err != nil {
		return err
	}
	if err := p.service.Register(p); err != nil {
		return err
	}
	p.ctx, p.cancel = context.WithCancel(as(context.Background(), "daemon"))
	w.proc = p
	w.lockInEffect() // its calls wait until it has read the lock
	go func() {
		defer close(p.ended)
		p.service.Follow(p.ctx)
	}()
	return nil
}

// reload makes the current process list the images again, as a SIGHUP does, unless it is being killed.
func (w *world) reload() error {
	p := w.proc
	if w.alive(p) != nil {
		return nil
	}
	return p.service.Reload(p.setup)
}

// kill ends a process: its later writes have no effect.
func (p *process) kill() {
	p.w.kill(p)
	p.cancel()
	p.service.Close()
}

// RegisterService implements grpc.ServiceRegistrar.
func (p *process) RegisterService(desc *grpc.ServiceDesc, impl any) {
	p.services[desc.ServiceName], p.impl[desc.ServiceName] = desc, impl
}

// call calls a method of imagepin's services. It returns the last message of a stream.
func call[Resp proto.Message](ctx context.Context, p *process, service, method string, req proto.Message) (resp Resp, _ error) {
	ctx = reading(ctx, method)
	if !strings.Contains(service, ".") {
		service = "runtime.v1." + service
	}
	for _, m := range p.services[service].Streams {
		if m.StreamName != method {
			continue
		}
		s := &stream{ctx: ctx, req: req}
		if err := m.Handler(p.impl[service], s); err != nil || s.last == nil {
			return resp, err
		}
		return s.last.(Resp), nil
	}
	for _, m := range p.services[service].Methods {
		if m.MethodName != method {
			continue
		}
		out, err := m.Handler(p.impl[service], ctx, func(into any) error {
			b, err := proto.Marshal(req)
			if err != nil {
				return err
			}
			return proto.Unmarshal(b, into.(proto.Message))
		}, nil)
		if err != nil {
			return resp, err
		}
		if resp, ok := out.(Resp); ok {
			return resp, nil
		}
		b, err := proto.Marshal(out.(proto.Message)) // forwarded messages are not decoded
		if err != nil {
			return resp, err
		}
		resp = resp.ProtoReflect().Type().New().Interface().(Resp)
		return resp, proto.Unmarshal(b, resp)
	}
	return resp, fmt.Errorf("no method %s", method)
}

// stream is a call whose answer is a stream. It keeps the last message.
type stream struct {
	grpc.ServerStream
	ctx  context.Context
	req  proto.Message
	last any
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) RecvMsg(into any) error {
	b, err := proto.Marshal(s.req)
	if err != nil {
		return err
	}
	return proto.Unmarshal(b, into.(proto.Message))
}

func (s *stream) SendMsg(m any) error {
	s.last = m
	return nil
}
