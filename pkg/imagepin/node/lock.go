package node

import (
	"context"

	"github.com/containerd/log"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/apply"
	"github.com/imagepin/imagepin/pkg/imagepin/control"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
)

// lockTopic is the topic of the event that the lock of the node has changed.
const lockTopic = "/imagepin/lock/applied"

// notifyLock publishes an event after the lock of the node has changed.
func (n *Node) notifyLock(ctx context.Context, r apply.Result) {
	ctx = inNamespace(ctx)
	if err := n.containerd.Events.Publish(ctx, lockTopic, control.LockEvent(r)); err != nil {
		log.G(ctx).WithError(err).Warn("failed to publish the event of a lock")
	}
}

// applyLocks applies locks, and keeps the images of the lock ready, until ctx ends. It begins when the index is built.
func (s *Service) applyLocks(ctx context.Context) {
	select {
	case <-s.Ready():
		s.applier.Run(inNamespace(ctx))
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
	select {
	case <-s.Ready():
		return control.LockSummary(s.applier.Status())
	default:
		return nil
	}
}
