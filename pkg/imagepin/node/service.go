package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/control"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/reconcile"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// retryAfter is how long to wait before the index is built again, where that
// failed.
const retryAfter = time.Second

type visible = func(ctx context.Context, id digest.Digest, names []string, wanted func(name string) bool) error

// Service is a node's imagepin in front of a CRI service.
type Service struct {
	node       *Node
	behind     grpc.ClientConnInterface
	puller     *pull.Puller
	cri        *cri.Service
	control    *control.Server
	reconciler *reconcile.Reconciler
	made       time.Time
	loaded     context.Context // ends once what is recorded has been read
	isLoaded   context.CancelFunc
	ready      chan struct{}
	underWay   bool                  // calls may have begun before this service was made
	measured   *atomic.Pointer[Node] // which metrics tell of

	running sync.Mutex      // held by Run
	ending  context.Context // done once nothing is to run any more
	end     context.CancelFunc
}

// Serve puts the node's imagepin in front of the CRI service behind a
// connection. Its calls wait until [Service.Run] has built the index.
func (n *Node) Serve(behind grpc.ClientConnInterface) (*Service, error) {
	s := newService(n, behind)
	s.puller = pull.New(s.pullConfig())
	s.cri = cri.New(s.criConfig())
	s.assemble()
	s.measured = &atomic.Pointer[Node]{}
	s.measured.Store(n)
	if err := metrics.Register(func() metrics.State { return s.measured.Load().state() }); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return s, nil
}

// With gives a service of another configuration, of the same containerd and in
// front of the same CRI service. It knows what s knows, and shares what is under
// way: calls that s has begun to answer go on as they are. Close s before Run is
// called for the other.
func (s *Service) With(c Config) (*Service, error) {
	n, err := s.node.with(c)
	if err != nil {
		return nil, err
	}
	next := newService(n, s.behind)
	select {
	case <-s.ready:
		next.underWay = true
	default:
		next.underWay, next.ready = s.underWay, s.ready // calls wait for it
	}
	next.puller = s.puller.With(next.pullConfig())
	next.cri = s.cri.With(next.criConfig())
	next.assemble()
	next.measured = s.measured
	next.measured.Store(n)
	return next, nil
}

func newService(n *Node, behind grpc.ClientConnInterface) *Service {
	s := &Service{node: n, behind: behind, made: time.Now(), ready: make(chan struct{})}
	s.loaded, s.isLoaded = context.WithCancel(context.Background())
	s.ending, s.end = context.WithCancel(context.Background())
	return s
}

// pullConfig is what the puller works with.
func (s *Service) pullConfig() pull.Config {
	behind := runtime.NewImageServiceClient(s.behind)
	return s.node.pullConfig(func(ctx context.Context, id digest.Digest, names []string, wanted func(name string) bool) error {
		return cri.WaitVisible(ctx, behind, id, names, wanted, s.node.remind)
	})
}

// remind makes containerd's CRI read a record once more. It does not for an image
// that cannot be read: the CRI waits longer after each failure before it reads the
// name again.
func (n *Node) remind(ctx context.Context, name string) error {
	ctx = inNamespace(ctx)
	img, err := n.Records.Get(ctx, name)
	if err != nil {
		return err
	}
	if _, _, err := pull.DescribeLocal(ctx, n.Content, img.Target, n.runtimes.Default()); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	return n.store.Republish(ctx, name)
}

func (s *Service) criConfig() cri.Config {
	n := s.node
	return cri.Config{
		Behind:              s.behind,
		Namespace:           Namespace,
		Store:               n.store,
		Puller:              s.puller,
		Decider:             n.decider,
		Pins:                n.pins,
		Content:             n.Content,
		Leases:              n.Leases,
		Runtimes:            n.runtimes,
		Snapshotter:         n.Snapshots,
		SnapshotRoot:        func(name string) string { return n.Snapshotters[name].Root },
		StatsPeriod:         time.Duration(n.CRI.Images.StatsCollectPeriod) * time.Second,
		SandboxImage:        n.CRI.SandboxImage(),
		WithoutSandboxImage: n.CRI.WithoutSandboxImage(),
		DiscardLayers:       n.CRI.Images.DiscardUnpackedLayers,
		Ready:               s.ready,
	}
}

// assemble makes what works on the puller and the CRI.
func (s *Service) assemble() {
	n := s.node
	n.pins.SetInUse(s.cri.PinsInUse)
	s.reconciler = reconcile.New(reconcile.Config{
		Store: n.store, Puller: s.puller, Retained: n.retainer, Content: n.Content, Leases: n.Leases,
		Events: n.Events, Runtimes: n.runtimes, Namespace: Namespace, UnderWay: s.underWay,
	})
	s.control = control.New(control.Config{
		Mend: s.reconciler.Mend, Uninstall: s.uninstall,
		Store: n.store, Puller: s.puller, Decider: n.decider, Pins: n.pins, Content: n.Content, Snapshotter: n.Snapshots,
		Runtimes: n.runtimes, Namespace: Namespace, Guard: s.cri.Guard,
	})
}

// PassOn passes a call of a method that is in no CRI known here on to the CRI
// service behind.
func (s *Service) PassOn(stream grpc.ServerStream) error { return s.cri.PassOn(stream) }

// Loaded is closed once what is recorded has been read.
func (s *Service) Loaded() <-chan struct{} { return s.loaded.Done() }

// Ready is closed once the index stands: what is recorded has been read, and what
// other tools have put on the node is adopted.
func (s *Service) Ready() <-chan struct{} { return s.ready }

// Register makes the CRI and the control service those of a gRPC server.
func (s *Service) Register(g grpc.ServiceRegistrar) error {
	s.control.Register(g)
	return s.cri.Register(g)
}

// RegisterCRI is [Service.Register] without the control service, for where there
// is nothing for operators.
func (s *Service) RegisterCRI(g grpc.ServiceRegistrar) error { return s.cri.Register(g) }

// Run builds the index and follows what changes in containerd until ctx ends or
// [Service.Close] is called, when it returns nil. An error says that it lost
// track: calls are answered for what it knew until it is run again.
func (s *Service) Run(ctx context.Context) error {
	s.running.Lock()
	defer s.running.Unlock()
	ctx, cancel := context.WithCancel(inNamespace(ctx))
	defer context.AfterFunc(s.ending, cancel)()
	var behind sync.WaitGroup
	defer behind.Wait()
	defer cancel()
	behind.Go(func() { s.sweep(ctx) })
	behind.Go(func() { s.node.collectGarbage(ctx) })
	err := s.node.Leases.(*undoneLeases).retry(ctx)
	if err == nil {
		err = s.node.pins.Load(ctx)
	}
	if err == nil {
		err = s.reconciler.Run(ctx, s.isLoaded, s.isReady)
	}
	if ctx.Err() != nil || s.ending.Err() != nil {
		return nil
	}
	return err
}

// isReady notes that the index stands.
func (s *Service) isReady() {
	select {
	case <-s.ready:
	default:
		log.L.WithField("took", time.Since(s.made)).Info("imagepin is ready")
		close(s.ready)
	}
}

// Follow runs the service until ctx ends or [Service.Close] is called, again
// where it lost track.
func (s *Service) Follow(ctx context.Context) {
	for {
		err := s.Run(ctx)
		if err == nil {
			return
		}
		log.G(ctx).WithError(err).Errorf("imagepin lost track of containerd's images, and lists them again in %s", retryAfter)
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
		case <-s.ending.Done():
		}
	}
}

// Close ends Run and waits for it.
func (s *Service) Close() {
	s.end()
	s.running.Lock()
	defer s.running.Unlock()
}

// uninstall takes everything of ours out of containerd's metadata, after all
// that writes has stopped: what is removed would be written again.
func (s *Service) uninstall(ctx context.Context, dry bool) (resp *api.UninstallResponse, err error) {
	err = s.cri.GuardRetired(ctx, "Uninstall", func() (err error) {
		resp, err = s.node.uninstall(ctx, dry, func(ctx context.Context) error {
			retired := s.cri.Retire(ctx)
			s.Close()
			return errors.Join(retired, s.node.store.End(ctx))
		})
		return err
	})
	return resp, err
}

// Runtimes are those of the runtime handlers, by name.
func (s *Service) Runtimes() []runtimeplatform.Runtime {
	var all []runtimeplatform.Runtime
	for _, name := range slices.Sorted(maps.Keys(s.node.CRI.Runtime.Containerd.Runtimes)) {
		if rt, err := s.node.runtimes.Lookup(name); err == nil {
			all = append(all, rt)
		}
	}
	return all
}
