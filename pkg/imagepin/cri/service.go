package cri

import (
	"context"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/lru"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config has the dependencies of a Service.
type Config struct {
	Upstream Upstream
	// Namespace is the containerd namespace of the CRI's images.
	Namespace string

	Store   Store
	Records store.Records
	Puller  Puller
	Images  Images
	Locks   Locks
	Decider Decider
	Pins    Pins
	Content content.Store
	Holder  Holder
	// Released is called after something that a call held has become garbage. It must not wait for a collection.
	Released func()
	// Runtimes returns the runtime handlers that are configured now.
	Runtimes    func() *runtimeplatform.Set
	Snapshotter func(name string) snapshots.Snapshotter
	// Settings returns the current settings.
	Settings func() *Settings
	// Ready returns a channel that is closed when the index of the store is built.
	Ready func() <-chan struct{}
	// WaitCompared waits until an image that the node may have lost files of is compared with its layers. name is a normalized reference
	// or an image ID. It may be nil.
	WaitCompared func(ctx context.Context, name string) error
}

// waitCompared waits for the comparison of images. Names are normalized references or image IDs. The caller has no lock.
func (c *Config) waitCompared(ctx context.Context, names ...string) error {
	if c.WaitCompared == nil {
		return nil
	}
	for _, name := range names {
		if err := c.WaitCompared(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Settings is the part of the configuration that a reload can change. A value is immutable.
type Settings struct {
	// SnapshotRoot returns the data directory of a snapshotter.
	SnapshotRoot func(snapshotter string) string
	// StatsPeriod is the maximum age of the snapshotter usage that ImageFsInfo reports.
	StatsPeriod time.Duration

	// SandboxImage is the image that sandboxes are created from, as configured.
	SandboxImage string
	// WithoutSandboxImage has the handlers whose runtime has its own sandbox image (disable_pause_image_pull).
	WithoutSandboxImage map[string]bool
	// GuestPull has the handlers whose guests pull images themselves.
	GuestPull map[string]bool
	// DiscardLayers reports whether layers are removed after they are unpacked. Error hints mention it.
	DiscardLayers bool
	// PinnedImages are the normalized references of pinned_images: containerd retains them.
	PinnedImages []string
}

// Store has the images of the node. [store.Store] implements it.
type Store interface {
	Index
	Presence
	Removal
	// MarkUnsynced records that upstream may not know the current version of a record.
	MarkUnsynced(img images.Image, entries ...imagepin.Entry)
	// MarkUsed records that keys are used now, unless a use within interval is recorded.
	MarkUsed(ctx context.Context, interval time.Duration, keys ...imagepin.Key) error
}

// Index finds images that are ready.
type Index interface {
	Get(k imagepin.Key) (imagepin.Entry, bool)
	ByID(id digest.Digest) []imagepin.Entry
	ByRoot(root digest.Digest) []imagepin.Entry
	ByRef(ref string) []imagepin.Entry
	// HasRef reports whether a normalized reference has entries.
	HasRef(ref string) bool
	// Find finds images by a reference, an image ID or a prefix of an image ID.
	Find(name string) []imagepin.Entry
	Images() []store.Image
	// InOrder returns the images in the order of their IDs. The entries of each are valid until the next one.
	InOrder() (count int, images iter.Seq[store.Image])
	// Untagged returns the images without a key, which upstream lists without a tag.
	Untagged() []store.Untagged
	// Unkeyed returns the image IDs whose records belong to no key, including those that upstream cannot read.
	Unkeyed() []digest.Digest
	FindUntagged(name string) (store.Untagged, bool)
	// Pinned reports whether another tool has pinned an image with the label of containerd's CRI.
	Pinned(id digest.Digest) bool
	// Damaged returns the keys that are recorded but not ready, and FindDamaged those of a reference or an image ID.
	Damaged() []store.Damaged
	FindDamaged(name string) []store.Damaged
	GetDamaged(k imagepin.Key) (store.Damaged, bool)
	// Expired reports whether no runtime handler has had an entry's target for [store.UnusedFor].
	Expired(e imagepin.Entry) bool
}

// Presence checks whether the content and the snapshots of images exist.
type Presence interface {
	// Present reports whether everything that an entry needs exists.
	Present(ctx context.Context, e imagepin.Entry) (bool, error)
	// EvictBlob and EvictSnapshot remove the keys that need a missing blob or snapshot from the index.
	EvictBlob(ctx context.Context, d digest.Digest) ([]imagepin.Entry, error)
	EvictSnapshot(ctx context.Context, snapshotter, name string) ([]imagepin.Entry, error)
	// HasKeys reports whether keys of an image are recorded, ready or not. It fails with ErrNotFound without a record.
	HasKeys(ctx context.Context, name string) (bool, error)
}

// Removal removes images.
type Removal interface {
	Remove(ctx context.Context, keys ...imagepin.Key) (store.Change, error)
	// DropDamaged removes damaged keys.
	DropDamaged(ctx context.Context, keys ...imagepin.Key) (dropped []imagepin.Entry, _ error)
	// RemoveRecords removes the records of an image that have no key.
	RemoveRecords(ctx context.Context, id digest.Digest, names ...string) (removed bool, _ error)
	RemoveUntagged(ctx context.Context, id digest.Digest, before time.Time) (removed bool, _ error)
	// Collect runs containerd's garbage collection.
	Collect(ctx context.Context) error
}

// Pins has the pins of the node. [pin.Store] implements it.
type Pins interface {
	List() []pin.Pin
	// Scopes returns the pins of a reference.
	Scopes(ref string) []pin.Pin
	// Retains reports whether a pin retains a digest.
	Retains(root digest.Digest) bool
}

// Decider decides which digest a reference resolves to. [decide.Decider] implements it.
type Decider interface {
	PodPins
	// Look returns the digest that a normalized reference is pinned to for a pod, and writes nothing.
	Look(ctx context.Context, name string, pod policy.Pod) (decide.Looked, error)
	// NeverPulls reports whether kubelet may find a normalized reference on the node only. It is a guess if known is false.
	NeverPulls(ctx context.Context, ref string, pod policy.Pod) (never, known bool, _ error)
	// PerPod reports whether the digest of a normalized reference can depend on the pod of a call.
	PerPod(name string) bool
	// Use returns what a container has to run. Confirm checks that this is still right, and makes the pins of first uses.
	Use(ctx context.Context, u decide.Use) (decide.Used, error)
	Confirm(ctx context.Context, all ...decide.Used) (current bool, _ error)
	// Locked returns the pin that the node's lock has for a normalized reference.
	Locked(ref string) (pin.Pin, bool)
	Rule(ref string) policy.Rule
	// LearnOwner reads the owner of a pod for later calls.
	LearnOwner(ctx context.Context, pod policy.Pod)
}

// PodPins returns which pins a pod uses. It sends no request.
type PodPins interface {
	Scopes(pod policy.Pod) []policy.Scope
	// ScopeOf returns the scope of the pin that decides a normalized reference for a pod.
	ScopeOf(ref string, pod policy.Pod) policy.Scope
	// WithKnownOwner returns the pod with its owner as far as the node knows it.
	WithKnownOwner(pod policy.Pod) policy.Pod
}

// Puller makes images ready. [pull.Puller] implements it.
type Puller interface {
	Pull(ctx context.Context, r pull.Request) (pull.Pulled, error)
	PullDetached(ctx context.Context, r pull.Request) (pull.Pulled, error)
	MakeReady(ctx context.Context, n pull.Need) (imagepin.Entry, error)
	// Verify calls the image verifiers. It fails with [imagepin.ImageVerificationFailed] if they do not accept an image.
	Verify(ctx context.Context, ref reference.Named, root ocispec.Descriptor) error
	// VerifyRun is Verify, without a call for what the same verifiers have accepted before.
	VerifyRun(ctx context.Context, ref reference.Named, root ocispec.Descriptor) error
	Shutdown(ctx context.Context) error
}

// Images waits until upstream knows an image as it is recorded. [pull.Maker] implements it.
type Images interface {
	WaitVisible(ctx context.Context, e imagepin.Entry) error
}

// Locks separates uses of images from removals. [pull.Locks] implements it.
type Locks interface {
	ForUse(ctx context.Context, refs ...string) (unlock func(), _ error)
	ForRemoval(ctx context.Context, refs ...string) (unlock func(), _ error)
}

// Service is the CRI that clients of this node use.
type Service struct {
	base       *base
	imageCalls *imageCalls
	remover    *remover
	containers *containers
	statistics *statistics
	retirement retirement
}

// base has the dependencies of all calls.
type base struct {
	Config
	images    runtime.ImageServiceClient
	runtimes  runtime.RuntimeServiceClient
	sandboxes *sandboxes
	answered  *lru.Cache // by name, of answer
	uses      *lru.Cache // when keys were last used since the start, of time.Time
}

// The calls by subject.
type (
	// imageCalls answers the calls of the ImageService, except RemoveImage.
	imageCalls struct {
		*base
		usage *usageCache
	}
	// remover removes images.
	remover struct{ *base }
	// containers makes the images of sandboxes and containers ready.
	containers struct{ *base }
	// statistics corrects the filesystems that upstream reports.
	statistics struct{ *base }
)

// New returns a service.
func New(c Config) *Service {
	b := &base{Config: c, images: runtime.NewImageServiceClient(c.Upstream), runtimes: runtime.NewRuntimeServiceClient(c.Upstream), answered: lru.New(maxAnswered), uses: lru.New(maxUses)}
	b.sandboxes = newSandboxes(func(ctx context.Context) ([]*runtime.PodSandbox, error) {
		resp, err := b.runtimes.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
		return resp.GetItems(), err
	}, func(ctx context.Context, id string) (*runtime.PodSandboxStatus, error) {
		resp, err := b.runtimes.PodSandboxStatus(ctx, &runtime.PodSandboxStatusRequest{PodSandboxId: id})
		return resp.GetStatus(), err
	})
	return &Service{
		base: b, imageCalls: &imageCalls{base: b, usage: newUsageCache()}, remover: &remover{b}, containers: &containers{b}, statistics: &statistics{b},
	}
}

// runtimeService is the gRPC service of the CRI for pods and containers.
const runtimeService = "runtime.v1.RuntimeService"

// interceptors returns what this service answers, by the name of the gRPC service.
func (s *Service) interceptors() map[string]*interceptors {
	all := map[string]*interceptors{
		runtimeService: {
			unary: map[string]unaryInterceptor{
				"RunPodSandbox":       intercept(s.containers.runPodSandbox),
				"PodSandboxStatus":    intercept(s.podSandboxStatus),
				"RemovePodSandbox":    intercept(s.containers.removePodSandbox),
				"CreateContainer":     intercept(s.containers.createContainer),
				"RemoveContainer":     intercept(s.containers.removeContainer),
				"ListContainers":      intercept(s.containers.listContainers),
				"ContainerStatus":     intercept(s.containers.containerStatus),
				"ContainerStats":      intercept(s.statistics.containerStats),
				"ListContainerStats":  intercept(s.statistics.listContainerStats),
				"PodSandboxStats":     intercept(s.statistics.podSandboxStats),
				"ListPodSandboxStats": intercept(s.statistics.listPodSandboxStats),
			},
			streams: map[string]streamInterceptor{
				"StreamContainers":      s.containers.streamContainers,
				"StreamContainerStats":  s.statistics.streamContainerStats,
				"StreamPodSandboxStats": s.statistics.streamPodSandboxStats,
			},
			endless: map[string]streamInterceptor{"GetContainerEvents": s.containerEvents},
		},
		"runtime.v1.ImageService": {
			unary: map[string]unaryInterceptor{
				"PullImage":   intercept(s.imageCalls.pullImage),
				"ImageStatus": intercept(s.imageCalls.imageStatus),
				"ListImages":  intercept(s.imageCalls.listImages),
				"RemoveImage": intercept(s.remover.removeImage),
				"ImageFsInfo": intercept(s.imageCalls.imageFsInfo),
			},
			streams: map[string]streamInterceptor{
				"StreamImages": s.imageCalls.streamImages,
			},
		},
	}
	if d, err := descriptorOf(runtimeService); err == nil && d.Methods().ByName(restoreMethod) != nil {
		all[runtimeService].unary[restoreMethod] = s.containers.restorePod
	}
	return all
}

// Register registers the service with a gRPC server.
func (s *Service) Register(server grpc.ServiceRegistrar) error {
	for name, i := range s.interceptors() {
		i.conn, i.guard, i.retirement = s.base.Upstream, s.guard, &s.retirement
		upstream, err := s.base.Upstream.Service(name)
		if err != nil {
			return err
		}
		desc, err := i.apply(upstream)
		if err != nil {
			return err
		}
		server.RegisterService(desc, s)
	}
	return nil
}

// withoutIndex are the methods whose answers do not need the index, or which wait for it themselves.
var withoutIndex = []string{"ListContainers", "StreamContainers", "GetContainerEvents", "PodSandboxStatus"}

// guard runs the answer to an intercepted call. It waits until the index is built if the call needs it, recovers from panics
// so that they do not reach containerd, and converts errors to statuses. It logs a PullImage that fails before the index is
// built.
func (s *Service) guard(ctx context.Context, method string, req proto.Message, call func() error) error {
	if slices.Contains(withoutIndex, method) {
		return toStatus(recovered(ctx, method, call))
	}
	started := false
	err := s.run(ctx, method, func() error {
		started = true
		return call()
	})
	if r, ok := req.(*runtime.PullImageRequest); ok && !started {
		logPullFailed(ctx, r, "", err)
	}
	return toStatus(err)
}

// recovered runs a call and converts a panic to an error.
func recovered(ctx context.Context, method string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.G(ctx).WithField("method", method).Errorf("panic: %v\n%s", p, debug.Stack())
			err = fmt.Errorf("imagepin: panic in %s: %w", method, errdefs.ErrInternal)
		}
	}()
	return call()
}

func (s *Service) run(ctx context.Context, method string, call func() error) error {
	return recovered(ctx, method, func() error { return s.whenReady(ctx, call) })
}

// whenReady waits until the index is built, and runs a call.
func (s *Service) whenReady(ctx context.Context, call func() error) error {
	ready := s.base.Ready()
	select {
	case <-ready:
		return call()
	default:
	}
	select {
	case <-ready:
		return call()
	case <-ctx.Done():
		return fmt.Errorf("imagepin is not initialized yet: %w", errdefs.ErrUnavailable)
	}
}

// Guard runs the answer to a call of another service in the same way as this service's own calls. Its errors are for
// people, not for kubelet. It fails with ErrFailedPrecondition after [Service.Retire].
func (s *Service) Guard(ctx context.Context, method string, call func() error) error {
	leave, ok := s.retirement.enter()
	if !ok {
		return plainStatus(fmt.Errorf("imagepin is uninstalled: start stock containerd, or restart this containerd to use imagepin again: %w", errdefs.ErrFailedPrecondition))
	}
	defer leave()
	return s.GuardRetired(ctx, method, call)
}

// Recover runs an own call that does not need the index, and converts a panic to an error.
func (s *Service) Recover(ctx context.Context, method string, call func() error) error {
	return plainStatus(recovered(ctx, method, call))
}

// GuardRetired is [Service.Guard] for a call that retires the service and can be repeated afterwards.
func (s *Service) GuardRetired(ctx context.Context, method string, call func() error) error {
	return plainStatus(s.run(ctx, method, call))
}

// namespaced returns a context for containerd's stores.
func (s *base) namespaced(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, s.Namespace)
}
