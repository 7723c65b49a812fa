package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
)

// retryAfter is how long to wait before the index is built again, where that
// failed.
const retryAfter = time.Second

type visible = func(ctx context.Context, id digest.Digest, names []string) error

// Service is a node's imagepin in front of a CRI service.
type Service struct {
	node       *Node
	cri        *cri.Service
	control    *control.Server
	reconciler *reconcile.Reconciler
	made       time.Time
	ready      chan struct{}

	running sync.Mutex      // held by Run
	ending  context.Context // done once nothing is to run any more
	end     context.CancelFunc
}

// Serve puts the node's imagepin in front of the CRI service behind a
// connection. Its calls wait until [Service.Run] has built the index.
func (n *Node) Serve(behind grpc.ClientConnInterface) (*Service, error) {
	s := &Service{node: n, made: time.Now(), ready: make(chan struct{})}
	s.ending, s.end = context.WithCancel(context.Background())
	images := runtime.NewImageServiceClient(behind)
	puller := pull.New(n.pullConfig(func(ctx context.Context, id digest.Digest, names []string) error {
		return cri.WaitVisible(ctx, images, id, names)
	}))
	s.cri = cri.New(cri.Config{
		Behind:              behind,
		Namespace:           Namespace,
		Store:               n.store,
		Puller:              puller,
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
	})
	s.reconciler = reconcile.New(reconcile.Config{
		Store: n.store, Puller: puller, Content: n.Content, Leases: n.Leases,
		Events: n.Events, Runtimes: n.runtimes, Namespace: Namespace,
	})
	s.control = control.New(control.Config{
		Mend: s.reconciler.Mend, Uninstall: s.uninstall,
		Store: n.store, Puller: puller, Pins: n.pins, Content: n.Content, Snapshotter: n.Snapshots,
		Runtimes: n.runtimes, Namespace: Namespace, Guard: s.cri.Guard,
	})
	if err := metrics.Register(n.state); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return s, nil
}

// Register makes the CRI and the control service those of a gRPC server.
func (s *Service) Register(g *grpc.Server) error {
	s.control.Register(g)
	return s.cri.Register(g)
}

// RegisterCRI is [Service.Register] without the control service, for where there
// is nothing for operators.
func (s *Service) RegisterCRI(g *grpc.Server) error { return s.cri.Register(g) }

// Run builds the index and follows what changes in containerd until ctx ends or
// [Service.Close] is called, when it returns nil. An error says that it lost
// track: calls are answered for what it knew until it is run again.
func (s *Service) Run(ctx context.Context) error {
	s.running.Lock()
	defer s.running.Unlock()
	ctx, cancel := context.WithCancel(inNamespace(ctx))
	defer context.AfterFunc(s.ending, cancel)()
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	defer cancel()
	sweeping.Go(func() { s.sweep(ctx) })
	err := s.node.loadPins(ctx)
	if err == nil {
		err = s.reconciler.Run(ctx, s.isReady)
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
