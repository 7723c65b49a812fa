package node

import (
	"context"

	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/imagepin/imagepin/pkg/imagepin/durable"
)

// blockfile is containerd's snapshotter with a file system in a file for each snapshot. It makes a snapshot as a copy of the parent's
// file: plugins/snapshots/blockfile/blockfile.go: createSnapshot. Without Commit of this type, the copy can lack the parent's files.
type blockfile struct{ snapshots.Snapshotter }

// Commit implements snapshots.Snapshotter. It commits after the snapshot's file has all that was unpacked.
func (s blockfile) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	mounts, err := s.Mounts(ctx, key)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := durable.WriteLoop(ctx, m.Source); err != nil {
			return err
		}
	}
	return s.Snapshotter.Commit(ctx, name, key, opts...)
}
