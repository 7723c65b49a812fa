package durable

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/upstream"
)

// patience is how long [Barrier.SyncTrees] waits before it calls syncfs. syncfs writes what others have written too, so it makes their
// calls of fsync slower. It is for what takes long for another reason.
const patience = 2 * time.Second

// SyncTrees makes directories of snapshots durable, which are in the directory snapshots of a snapshotter's directory. It writes
// all files in them, and waits for no data of others. If that takes long, or cannot be done, it also waits for [Barrier.Sync],
// and returns when one of both has succeeded. since is when the first of the snapshots was created.
//
// It fails with ErrUnavailable if a disk loses a file of the directories. A failure of syncfs alone may be about a file of another
// process: it counts if there is no result for the files. SyncTrees returns when ctx ends, with its cause.
func (b *Barrier) SyncTrees(ctx context.Context, root string, since time.Time, trees ...*Tree) error {
	d, err := b.open(root)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	files := make(chan error, 1)
	go func() { files <- b.syncTrees(ctx, filepath.Join(root, upstream.SnapshotsDir), trees...) }()
	var system chan error // nil before syncfs is called
	begin := func() {
		if system == nil {
			result := make(chan error, 1)
			system = result
			go func() { result <- syncSince(ctx, d.sync, root, since) }()
		}
	}
	long := time.NewTimer(b.patience)
	defer long.Stop()
	var failed error // the result of the way that has ended
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-long.C:
			begin()
		case err := <-files:
			if err == nil {
				return nil
			}
			if failed != nil || errdefs.IsUnavailable(err) {
				return errors.Join(err, failed)
			}
			failed = err
			begin()
		case err := <-system:
			if err == nil {
				return nil
			}
			if failed != nil {
				return errors.Join(failed, err)
			}
			failed = err
		}
	}
}

// syncSince syncs a file system. It also fails if a sync since a time has failed: the kernel reports an error once, and it may have
// been about a file that was written then.
func syncSince(ctx context.Context, r *rounds, root string, since time.Time) error {
	what := "the file system of " + root
	if err := wait(ctx, r, what); err != nil {
		return err
	}
	return described(r.failedSince(since), what)
}
