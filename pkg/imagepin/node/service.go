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
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/control"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/reconcile"
	"github.com/imagepin/imagepin/pkg/imagepin/running"
	"github.com/imagepin/imagepin/pkg/imagepin/usage"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// retryAfter is how long Follow waits before it builds the index again after a failure.
const retryAfter = time.Second

// Service is a node's imagepin in front of a CRI service.
type Service struct {
	node       *Node
	puller     *pull.Puller
	cri        *cri.Service
	control    *control.Server
	reconciler *reconcile.Reconciler
	locks      Locks // nil in a build without locks
	created    time.Time
	ready      atomic.Pointer[chan struct{}] // closed when the index is built

	running sync.Mutex         // held by Run
	mu      sync.Mutex         // guards relist
	relist  context.CancelFunc // makes Run list images again; nil while it does not run
	ending  context.Context    // done when the service is closed
	end     context.CancelFunc
}

// Serve puts the node's imagepin in front of containerd's own CRI service. Calls wait until [Service.Run] has built the
// index. Serve is called once.
func (n *Node) Serve(upstream cri.Upstream) (*Service, error) {
	s := &Service{node: n, created: time.Now()}
	s.ready.Store(new(make(chan struct{})))
	s.ending, s.end = context.WithCancel(context.Background())
	checker := health.New(health.Config{
		Images: n.store, Content: n.containerd.Content, Leases: n.containerd.Leases, Snapshotter: n.containerd.Snapshots, Runtimes: n.runtimes,
		ForGuests: n.isForGuests, NeedsFiles: func(ref string) bool { return n.active.Load().pull.IsSandboxImage(ref) },
	})
	wait := func(ctx context.Context, name string) error { return s.reconciler.WaitCompared(ctx, name) }
	maker := pull.New(pull.Config{
		Content: n.containerd.Content, Leases: n.containerd.Leases, Images: n.store, Pins: n.decider, Proofs: n.proofs,
		Sessions: registry{n}, Retained: n.retainer, Bandwidth: &n.bandwidth.limiter, Garbage: n, Locks: &n.locks, Runtimes: n.runtimes, Snapshots: checker, WaitCompared: wait,
		RepairSnapshots: func(ctx context.Context, e imagepin.Entry) error { return s.reconciler.RepairSnapshots(ctx, e) },
		Upstream:        cri.Visibility{Images: runtime.NewImageServiceClient(upstream), Remind: n.remind},
		Settings:        func() *pull.Settings { return n.active.Load().pull },
		Clean:           func(ctx context.Context) error { return s.reconciler.AwaitClean(ctx) },
	})
	s.puller = pull.NewPuller(n.decider, maker, n.metrics, n.prover.Identity)
	s.cri = cri.New(cri.Config{
		Upstream: upstream, Namespace: Namespace, Store: n.store, Records: n.containerd.Records, Puller: s.puller, Images: maker, Locks: &n.locks,
		Decider: n.decider, Pins: n.pins, Content: n.containerd.Content, Holder: n.containerd.Holder, Released: n.CollectAsync, Runtimes: n.runtimes,
		Snapshotter: n.containerd.Snapshots, Settings: func() *cri.Settings { return n.active.Load().cri },
		Ready: s.Ready, WaitCompared: wait,
	})
	n.inUse = s.cri.PinsInUse
	s.reconciler = reconcile.New(reconcile.Config{
		Store: n.store, Records: n.containerd.Records, Checker: checker, Maker: maker, Puller: s.puller, Retained: n.retainer, Content: n.containerd.Content,
		Leases: n.containerd.Leases, Events: n.containerd.Events, Locks: &n.locks, Runtimes: n.runtimes, Namespace: Namespace,
		Pinned: n.pinned, Boots: n.collected, Collect: n.Collect, Boot: n.boot(), Replacer: n.newReplacer(s.cri.SnapshotUsers),
	})
	if n.fleet != nil {
		s.locks = n.fleet.Serve(FleetService{Puller: s.puller, CRI: s.cri})
	}
	s.control = control.New(control.Config{
		Health: s.reconciler, Unverified: s.reconciler.Unverified, Uninstall: s.uninstall, Status: s.status, LimitRate: n.bandwidth.limit, Exited: s.cri, Pods: s.cri, Remover: remover{s.cri, lease.NewResumes(n.containerd.Leases, n.containerd.Content), n.store.Collect}, Locks: s.controlLocks(), Registry: registry{n}, Events: n.containerd.Events, Records: n.containerd.Records,
		Usage: usage.New(usage.Config{
			Images: n.store, Records: n.containerd.Records, Content: n.containerd.Content, Leases: n.containerd.Leases, Snapshotter: n.containerd.Snapshots,
		}),
		Running: &running.Comparer{List: s.cri.RunningImages, Images: n.store, Pins: n.decider, Runtimes: n.runtimes},
		Images:  n.store, Puller: s.puller, Decider: n.decider, Pins: n.pins, Lookups: n.lookups, Content: n.containerd.Content,
		Snapshotter: n.containerd.Snapshots, Runtimes: n.runtimes, GuestPull: n.hasGuests, ForGuests: n.isForGuests, Namespace: Namespace, Guard: s.cri.Guard, Recover: s.cri.Recover,
	})
	if n.registerer != nil {
		if err := n.metrics.Register(n.registerer, s.state); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return s, nil
}

// remover is the removal of images for the control service.
type remover struct {
	*cri.Service
	resumes *lease.Resumes
	collect func(context.Context) error
}

// Prune also frees what failed pulls have fetched, of whatever age, unless only the images of a handler are to be removed.
func (r remover) Prune(ctx context.Context, o control.PruneOptions) ([]imagepin.Entry, error) {
	removed, err := r.Service.Prune(ctx, cri.PruneOptions(o))
	if err != nil || o.DryRun || o.Handler != "" {
		return removed, err
	}
	ctx = inNamespace(ctx)
	freed, err := r.resumes.Free(ctx)
	if freed {
		err = errors.Join(err, r.collect(ctx))
	}
	return removed, err
}

// Reload replaces the setup and lists the images again. Calls in progress continue with the setup that they have read.
// Later calls wait until the index is built. If the setup is invalid, Reload fails with ErrInvalidArgument and changes
// nothing.
func (s *Service) Reload(setup Setup) error {
	next, err := s.node.activate(setup)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node.bandwidth.configure(next.Settings.MaxDownloadRate)
	if last := s.node.active.Swap(next); last.cluster != nil && last.cluster != next.cluster {
		last.cluster.Close()
	}
	select {
	case <-s.Ready():
		s.ready.Store(new(make(chan struct{})))
	default: // calls already wait
	}
	if s.relist != nil {
		s.relist()
	}
	return nil
}

// remind makes containerd's CRI read a record again. It does nothing for an image that cannot be read, because the CRI
// waits longer after each failure before it reads the name again.
func (n *Node) remind(ctx context.Context, name string) error {
	ctx = inNamespace(ctx)
	img, err := n.containerd.Records.Get(ctx, name)
	if err != nil {
		return err
	}
	if _, _, err := pull.DescribeLocal(ctx, n.containerd.Content, img.Target, n.runtimes().Default()); err != nil {
		return fmt.Errorf("image cannot be read: %w", err)
	}
	return n.store.Republish(ctx, name)
}

// Ready returns a channel that is closed when the index is built: the records have been read, and the images of other
// tools have been adopted. After [Service.Reload] it returns another channel.
func (s *Service) Ready() <-chan struct{} { return *s.ready.Load() }

// Register registers the CRI and the control service with a gRPC server.
func (s *Service) Register(g grpc.ServiceRegistrar) error {
	s.control.Register(g)
	return s.cri.Register(g)
}

// RegisterCRI is [Service.Register] without the control service, for a server that operators do not use.
func (s *Service) RegisterCRI(g grpc.ServiceRegistrar) error { return s.cri.Register(g) }

// Run builds the index and follows changes in containerd. It returns nil when ctx ends or [Service.Close] is called. An
// error means that the event stream was lost: calls are answered from the last known state until Run is called again.
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
	background.Go(func() { s.applyLocks(ctx) })
	for {
		err := s.listAndWatch(ctx, &background)
		if ctx.Err() != nil || s.ending.Err() != nil {
			return nil
		}
		if !errors.Is(err, errRelist) {
			return err
		}
	}
}

// errRelist means that the images must be listed again.
var errRelist = errors.New("listing images again")

// listAndWatch builds the index and follows changes in containerd until ctx ends. It fails with errRelist when
// [Service.Reload] is called. What it starts in background ends then too, but it does not wait for it: calls wait for the index,
// and a credential plugin of the cluster takes as long as it wants.
func (s *Service) listAndWatch(ctx context.Context, background *sync.WaitGroup) error {
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
	if c := s.node.active.Load().cluster; c != nil {
		background.Go(func() { c.Run(ctx) })
	}
	background.Go(func() { s.lookUp(ctx, ready) })
	started := time.Now()
	err := s.node.leases.Retry(ctx)
	if err == nil {
		err = s.node.pins.Load(ctx)
	}
	if err == nil {
		err = s.node.loadLock(ctx) // before the reconciler releases what no pin retains
	}
	if err == nil {
		err = s.reconciler.Run(ctx, func() {
			s.node.reconcile.Store(int64(time.Since(started)))
			s.markReady(ready)
		})
	}
	if errors.Is(context.Cause(ctx), errRelist) {
		return errRelist
	}
	return err
}

// markReady closes the channel that calls wait for.
func (s *Service) markReady(ready chan struct{}) {
	select {
	case <-ready:
	default:
		log.L.WithField("took", time.Since(s.created)).Info("imagepin is ready")
		close(ready)
	}
}

// Follow calls [Service.Run], again after each failure, until ctx ends or [Service.Close] is called.
func (s *Service) Follow(ctx context.Context) {
	for {
		err := s.Run(ctx)
		if err == nil {
			return
		}
		log.G(ctx).WithError(err).Errorf("event stream lost, listing images again in %s", retryAfter)
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

// uninstall removes all of imagepin's records from containerd's metadata. It stops all writers first, so that nothing
// is written again.
func (s *Service) uninstall(ctx context.Context, dry bool) (resp *api.UninstallResponse, err error) {
	err = s.cri.GuardRetired(ctx, "Uninstall", func() (err error) {
		resp, err = s.node.uninstall(ctx, dry, func(ctx context.Context) error {
			retired := s.cri.Retire(ctx)
			s.Close()
			return errors.Join(retired, s.node.store.Shutdown(ctx))
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
