package node

import (
	"context"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/control"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
)

// loadLock reads the lock of the node.
func (n *Node) loadLock(ctx context.Context) error {
	if n.fleet == nil {
		return nil
	}
	return n.fleet.Load(ctx)
}

// controlLocks returns what the control service needs to apply locks, or nil in a build without locks.
func (s *Service) controlLocks() control.Locks {
	if s.locks != nil {
		return s.locks
	}
	return nil
}

// applyLocks applies locks, and keeps the images of the lock ready, until ctx ends. It begins when the index is built.
func (s *Service) applyLocks(ctx context.Context) {
	if s.locks == nil {
		return
	}
	select {
	case <-s.Ready():
		s.locks.Run(inNamespace(ctx))
	case <-ctx.Done():
	}
}

// state returns the state that the node's metrics report.
func (s *Service) state() metrics.State {
	st := s.node.state()
	for _, p := range s.puller.Running() {
		st.Pulls++
		st.PullsLeft += max(p.Total-p.Received, 0)
	}
	if sum := s.lockStatus(); sum != nil {
		st.Lock = metrics.Lock{
			Digest: sum.GetDigest(), AppliedAt: sum.GetAppliedAt().AsTime(), Images: sum.GetImages(), Ready: sum.GetReady(),
			Drifted: sum.GetDriftedContainers(), Failed: sum.GetFailed() != "",
		}
	}
	return st
}

// lockStatus returns the state of the lock in numbers. It is nil until the index is built, because it is not known before which
// images are ready.
func (s *Service) lockStatus() *api.LockSummary {
	if s.locks == nil {
		return nil
	}
	select {
	case <-s.Ready():
		return s.locks.Summary()
	default:
		return nil
	}
}
