package cri

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config is what a Service works with.
type Config struct {
	// Behind is a connection to the CRI service that calls are forwarded to.
	Behind grpc.ClientConnInterface
	// Namespace is the containerd namespace of the CRI's images.
	Namespace string

	Store    *store.Store
	Puller   *pull.Puller
	Decider  *decide.Decider
	Pins     *pin.Store
	Content  content.Store
	Leases   leases.Manager
	Runtimes *runtimeplatform.Set

	Snapshotter func(name string) snapshots.Snapshotter
	// SnapshotRoot gives the directory that a snapshotter keeps its data in.
	SnapshotRoot func(snapshotter string) string
	// StatsPeriod is how old the usage of a snapshotter may be that is
	// reported by ImageFsInfo.
	StatsPeriod time.Duration

	// SandboxImage is the image that sandboxes are made of, as configured.
	SandboxImage string
	// WithoutSandboxImage are the handlers whose runtime brings its own
	// sandbox image (disable_pause_image_pull).
	WithoutSandboxImage map[string]bool
	// DiscardLayers is what the Puller has, for errors to speak of.
	DiscardLayers bool

	// Ready is closed when the index of the store stands.
	Ready <-chan struct{}
}

// Service is the CRI as clients of this node see it.
type Service struct {
	Config
	images   runtime.ImageServiceClient
	runtimes runtime.RuntimeServiceClient
	*memory
}

// memory is what a service remembers of its calls.
type memory struct {
	sandboxes  sandboxes
	answered   lastAnswered
	usage      usageCache
	retirement retirement
}

// New makes a service.
func New(c Config) *Service {
	s := newService(c, &memory{})
	s.sandboxes.list = func(ctx context.Context) ([]*runtime.PodSandbox, error) {
		resp, err := s.runtimes.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
		return resp.GetItems(), err
	}
	s.sandboxes.status = func(ctx context.Context, id string) (*runtime.PodSandboxStatus, error) {
		resp, err := s.runtimes.PodSandboxStatus(ctx, &runtime.PodSandboxStatusRequest{PodSandboxId: id})
		return resp.GetStatus(), err
	}
	return s
}

// With gives a service with another configuration, in front of the same one,
// that remembers what s does. Both may be used at once.
func (s *Service) With(c Config) *Service { return newService(c, s.memory) }

func newService(c Config, m *memory) *Service {
	return &Service{
		Config:   c,
		images:   runtime.NewImageServiceClient(c.Behind),
		runtimes: runtime.NewRuntimeServiceClient(c.Behind),
		memory:   m,
	}
}

// Register makes the service's methods those of a gRPC server.
func (s *Service) Register(server grpc.ServiceRegistrar) error {
	for _, p := range []*proxy{
		{
			service: "runtime.v1.RuntimeService",
			unary: map[string]unaryInterceptor{
				"RunPodSandbox":       intercept(s.runPodSandbox),
				"RemovePodSandbox":    intercept(s.removePodSandbox),
				"CreateContainer":     intercept(s.createContainer),
				"ContainerStatus":     intercept(s.containerStatus),
				"ContainerStats":      intercept(s.containerStats),
				"ListContainerStats":  intercept(s.listContainerStats),
				"PodSandboxStats":     intercept(s.podSandboxStats),
				"ListPodSandboxStats": intercept(s.listPodSandboxStats),
			},
			streams: map[string]streamInterceptor{
				"StreamContainerStats":  s.streamContainerStats,
				"StreamPodSandboxStats": s.streamPodSandboxStats,
			},
		},
		{
			service: "runtime.v1.ImageService",
			unary: map[string]unaryInterceptor{
				"PullImage":   intercept(s.pullImage),
				"ImageStatus": intercept(s.imageStatus),
				"ListImages":  intercept(s.listImages),
				"RemoveImage": intercept(s.removeImage),
				"ImageFsInfo": intercept(s.imageFsInfo),
			},
			streams: map[string]streamInterceptor{
				"StreamImages": s.streamImages,
			},
		},
	} {
		p.behind, p.guard, p.retirement = s.Behind, s.guard, &s.retirement
		desc, err := p.serviceDesc()
		if err != nil {
			return err
		}
		server.RegisterService(desc, s)
	}
	return nil
}

// guard runs the answer to an intercepted call: once the index stands, without
// a panic reaching containerd, and with errors as statuses.
func (s *Service) guard(ctx context.Context, method string, call func() error) error {
	return toStatus(s.run(ctx, method, call))
}

func (s *Service) run(ctx context.Context, method string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.G(ctx).WithField("method", method).Errorf("panic: %v\n%s", p, debug.Stack())
			err = fmt.Errorf("imagepin: panic in %s: %w", method, errdefs.ErrInternal)
		}
	}()
	select {
	case <-s.Ready:
		return call()
	default:
	}
	select {
	case <-s.Ready:
		return call()
	case <-ctx.Done():
		return fmt.Errorf("imagepin is not initialized yet: %w", errdefs.ErrUnavailable)
	}
}

// Guard runs the answer to a call as this service's own calls are run, for a
// service beside it. Its errors are for people, not for kubelet. It fails with
// ErrFailedPrecondition after [Service.Retire].
func (s *Service) Guard(ctx context.Context, method string, call func() error) error {
	leave, ok, err := s.retirement.enter(ctx)
	if err != nil {
		return plainStatus(err)
	}
	if !ok {
		return plainStatus(fmt.Errorf("imagepin is uninstalled: start stock containerd, or restart this one to have imagepin again: %w", errdefs.ErrFailedPrecondition))
	}
	defer leave()
	return s.GuardRetired(ctx, method, call)
}

// GuardRetired is [Service.Guard] for what may retire the service, and be
// called again after.
func (s *Service) GuardRetired(ctx context.Context, method string, call func() error) error {
	return plainStatus(s.run(ctx, method, call))
}

// namespaced gives a context for containerd's stores.
func (s *Service) namespaced(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, s.Namespace)
}
