package node

import (
	"context"

	"github.com/containerd/log"
)

// Collect implements [pull.Garbage].
func (n *Node) Collect(ctx context.Context) error { return n.store.Collect(ctx) }

// CollectLater implements [pull.Garbage].
func (n *Node) CollectLater() {
	select {
	case n.garbage <- struct{}{}:
	default: // it is going to be collected already
	}
}

// collectGarbage collects what [Node.CollectLater] is called for until ctx ends. It waits for containerd's collection and
// for its snapshotters, which no call should.
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
