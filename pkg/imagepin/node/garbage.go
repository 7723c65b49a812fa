package node

import (
	"context"

	"github.com/containerd/log"
)

// noteGarbage has what nothing holds any more collected behind the service.
func (n *Node) noteGarbage() {
	select {
	case n.garbage <- struct{}{}:
	default: // it is going to be collected already
	}
}

// collectGarbage collects what is noted as garbage until ctx ends. It waits for
// containerd's collection and for its snapshotters, which no call should.
func (n *Node) collectGarbage(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.garbage:
		}
		if err := n.store.Collect(ctx); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("what was released is collected later")
		}
	}
}
