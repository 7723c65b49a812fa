package node

import (
	"context"

	"github.com/containerd/log"
)

// Collect implements [pull.Garbage].
func (n *Node) Collect(ctx context.Context) error { return n.store.Collect(ctx) }

// CollectAsync implements [pull.Garbage].
func (n *Node) CollectAsync() {
	select {
	case n.garbage <- struct{}{}:
	default: // a collection is already pending
	}
}

// collectGarbage runs a collection for each call of [Node.CollectAsync] until ctx ends. A collection waits for
// containerd's garbage collection and for its snapshotters, and no other call should wait for them.
func (n *Node) collectGarbage(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.garbage:
		}
		if err := n.store.Collect(ctx); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("garbage collection failed, released content stays until the next one")
		}
	}
}
