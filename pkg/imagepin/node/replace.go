package node

import (
	"context"

	"github.com/containerd/containerd/v2/core/diff"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/replace"
)

// newReplacer returns what replaces the files of damaged snapshots. users returns what may run on snapshots.
func (n *Node) newReplacer(users func(context.Context) ([]replace.User, error)) *replace.Replacer {
	return replace.New(replace.Config{
		Content: n.containerd.Content, Leases: n.containerd.Leases, Snapshotter: n.containerd.Snapshots, Locks: &n.locks,
		Applier: n.applierFor, Sync: n.syncAll, Entries: n.allEntries, Users: users, Released: n.CollectAsync,
	})
}

// applierFor returns what unpacks layers in a snapshotter. ok is false if no runtime handler has it.
func (n *Node) applierFor(snapshotter string) (_ diff.Applier, _ []diff.ApplyOpt, ok bool) {
	for _, p := range n.active.Load().pull.UnpackPlatforms {
		if p.SnapshotterKey == snapshotter {
			return p.Applier, p.ApplyOpts, true
		}
	}
	return nil, nil, false
}

// syncAll makes all snapshots of a snapshotter durable, unless the configuration says that images are not made durable.
func (n *Node) syncAll(ctx context.Context, snapshotter string) error {
	return n.active.Load().syncer.all(ctx, snapshotter)
}

// allEntries returns all keys, ready or damaged.
func (n *Node) allEntries() (all []imagepin.Entry) {
	for _, img := range n.store.Images() {
		all = append(all, img.Entries...)
	}
	for _, d := range n.store.Damaged() {
		all = append(all, d.Entry)
	}
	return all
}
