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
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/control"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/reconcile"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// retryAfter is how long to wait before the index is built again, where that
// failed.
const retryAfter = time.Second

// Service is a node's imagepin in front of a CRI service.
type Service struct {
	node       *Node
	puller     *pull.Puller
	cri        *cri.Service
	control    *control.Server
	reconciler *reconcile.Reconciler
	made       time.Time
	loaded     context.Context // ends once what is recorded has been read
	markLoaded context.CancelFunc
	ready      atomic.Pointer[chan struct{}] // closed once the index is built

	running sync.Mutex         // held by Run
	mu      sync.Mutex         // guards relist
	relist  context.CancelFunc // has Run list images again; nil while it does not run
	ending  context.Context    // done once nothing is to run any more
	end     context.CancelFunc
}

// Serve puts the node's imagepin in front of containerd's own CRI service. Its calls wait until [Service.Run] has
// built the index. It is called once.
func (n *Node) Serve(upstream cri.Upstream) (*Service, error) {
	s := &Service{node: n, made: time.Now()}
	s.ready.Store(new(make(chan struct{})))
	s.loaded, s.markLoaded = context.WithCancel(context.Background())
	s.ending, s.end = context.WithCancel(context.Background())
	maker := pull.New(pull.Config{
		Content: n.containerd.Content, Leases: n.containerd.Leases, Images: n.store, Pins: n.decider, Proofs: n.proofs,
		Sessions: registry{n}, Retained: n.retainer, Garbage: n, Locks: &n.locks, Runtimes: n.runtimes,
		Upstream: cri.Visibility{Images: runtime.NewImageServiceClient(upstream), Remind: n.remind},
		Settings: func() *pull.Settings { return n.active.Load().pull },
	})
	s.puller = pull.NewPuller(n.decider, maker, n.metrics, n.prover.Identity)
	s.cri = cri.New(cri.Config{
		Upstream: upstream, Namespace: Namespace, Store: n.store, Records: n.containerd.Records, Puller: s.puller, Images: maker, Locks: &n.locks,
		Decider: n.decider, Pins: n.pins, Content: n.containerd.Content, Leases: n.containerd.Leases, Runtimes: n.runtimes,
		Snapshotter: n.containerd.Snapshots, Settings: func() *cri.Settings { return n.active.Load().cri },
		Ready: s.Ready,
	})
	n.inUse = s.cri.PinsInUse
	s.reconciler = reconcile.New(reconcile.Config{
		Store: n.store, Records: n.containerd.Records, Checker: health.New(health.Config{
			Images: n.store, Records: n.containerd.Records, Content: n.containerd.Content, Leases: n.containerd.Leases,
			Snapshotter: n.containerd.Snapshots, Runtimes: n.runtimes,
		}), Maker: maker, Puller: s.puller, Retained: n.retainer, Content: n.containerd.Content,
		Leases: n.containerd.Leases, Events: n.containerd.Events, Runtimes: n.runtimes, Namespace: Namespace,
	})
	s.control = control.New(control.Config{
		Health: s.reconciler, Uninstall: s.uninstall,
		Images: n.store, Puller: s.puller, Decider: n.decider, Pins: n.pins, Content: n.containerd.Content,
		Snapshotter: n.containerd.Snapshots, Runtimes: n.runtimes, Namespace: Namespace, Guard: s.cri.Guard,
	})
	if n.registerer != nil {
		if err := n.metrics.Register(n.registerer, n.state); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return s, nil
}

// Reload replaces what of the configuration may change, and has the images listed again. Calls that are under way go on
// with what they have read; later ones wait until the index is built. It fails with ErrInvalidArgument where the setup is
// wrong: then nothing changes.
func (s *Service) Reload(setup Setup) error {
	next, err := s.node.activate(setup)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node.active.Store(next)
	select {
	case <-s.Ready():
		s.ready.Store(new(make(chan struct{})))
	default: // calls wait already
	}
	if s.relist != nil {
		s.relist()
	}
	return nil
}

// remind makes containerd's CRI read a record once more. It does not for an image
// that cannot be read: the CRI waits longer after each failure before it reads the
// name again.
func (n *Node) remind(ctx context.Context, name string) error {
	ctx = inNamespace(ctx)
	img, err := n.containerd.Records.Get(ctx, name)
	if err != nil {
		return err
	}
	if _, _, err := pull.DescribeLocal(ctx, n.containerd.Content, img.Target, n.runtimes().Default()); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	return n.store.Republish(ctx, name)
}

// Loaded is closed once what is recorded has been read.
func (s *Service) Loaded() <-chan struct{} { return s.loaded.Done() }

// Ready returns a channel that is closed once the index is built: what is recorded has been read, and what other tools
// have put on the node is adopted. After [Service.Reload] it is another one.
func (s *Service) Ready() <-chan struct{} { return *s.ready.Load() }

// Register makes the CRI and the control service those of a gRPC server.
func (s *Service) Register(g grpc.ServiceRegistrar) error {
	s.control.Register(g)
	return s.cri.Register(g)
}

// RegisterCRI is [Service.Register] without the control service, for where there
// is nothing for operators.
func (s *Service) RegisterCRI(g grpc.ServiceRegistrar) error { return s.cri.Register(g) }

// Run builds the index and follows what changes in containerd until ctx ends or [Service.Close] is called, when it
// returns nil. An error is that the event stream was lost: calls are answered for what was known until it is run again.
func (s *Service) Run(ctx context.Context) error {
	s.running.Lock()
	defer s.running.Unlock()
	ctx, cancel := context.WithCancel(inNamespace(ctx))
	defer context.AfterFunc(s.ending, cancel)()
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Go(func() { s.sweep(ctx) })
	background.Go(func() { s.node.collectGarbage(ctx) })
	for {
		err := s.list(ctx)
		if ctx.Err() != nil || s.ending.Err() != nil {
			return nil
		}
		if !errors.Is(err, errRelist) {
			return err
		}
	}
}

// errRelist is that the images are to be listed again.
var errRelist = errors.New("listing images again")

// list builds the index and follows what changes in containerd until ctx ends, or [Service.Reload] is called, when it
// fails with errRelist.
func (s *Service) list(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.relist = func() { cancel(errRelist) }
	ready := *s.ready.Load()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.relist = nil
		s.mu.Unlock()
	}()
	err := s.node.leases.Retry(ctx)
	if err == nil {
		err = s.node.pins.Load(ctx)
	}
	if err == nil {
		err = s.reconciler.Run(ctx, s.markLoaded, func() { s.markReady(ready) })
	}
	if errors.Is(context.Cause(ctx), errRelist) {
		return errRelist
	}
	return err
}

// markReady closes the channel of those that wait for the index.
func (s *Service) markReady(ready chan struct{}) {
	select {
	case <-ready:
	default:
		log.L.WithField("took", time.Since(s.made)).Info("imagepin is ready")
		close(ready)
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

// Runtimes returns the runtimes of the runtime handlers, ordered by name.
func (s *Service) Runtimes() []runtimeplatform.Runtime {
	now := s.node.active.Load()
	var all []runtimeplatform.Runtime
	for _, name := range slices.Sorted(maps.Keys(now.CRI.Runtime.Containerd.Runtimes)) {
		if rt, err := now.runtimes.Lookup(name); err == nil {
			all = append(all, rt)
		}
	}
	return all
}
