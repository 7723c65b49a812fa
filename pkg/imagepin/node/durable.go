package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
)

// durableIn returns [pull.Settings.Durable] of a setup; nil if images are not made durable.
//
// It opens the directories of containerd's own snapshotters and of its content store before anything is written, and fails with
// ErrInvalidArgument if imagepin serve cannot. It logs a warning about a proxy whose directory cannot be opened: the proxy may
// unpack nothing, and its exports may not name its directory.
func (n *Node) durableIn(a *active) (func(ctx context.Context, snapshotter string) (string, error), error) {
	if !a.Settings.Sync || !durable.Supported {
		return nil, nil
	}
	refuse := func(what string, err error) error {
		return fmt.Errorf("[plugins.%q] sync: open the directory of %s: %w: %w", config.Section, what, err, errdefs.ErrInvalidArgument)
	}
	boot := durable.BootID()
	roots := make(map[string]string)
	for _, name := range a.runtimes.Snapshotters() {
		sn := a.Snapshotters[name]
		err := n.barrier.Open(sn.Root)
		switch {
		case err == nil:
			roots[name] = sn.Root
		case n.mode == ModeServe && sn.isEager(name):
			return nil, refuse("the snapshotter "+name, err)
		default:
			log.L.WithError(err).Warnf("images in the snapshotter %s may be lost when the power is cut: its directory cannot be opened", name)
		}
	}
	if n.mode == ModeServe && a.ContentDir != "" {
		// containerd before 2.3 makes the directory with the first blob.
		if err := n.barrier.Open(filepath.Dir(a.ContentDir)); err != nil {
			return nil, refuse("the content store", err)
		}
	}
	return func(ctx context.Context, snapshotter string) (string, error) {
		root, ok := roots[snapshotter]
		if !ok {
			return "", nil
		}
		if err := n.barrier.Sync(ctx, root); err != nil {
			return "", err
		}
		return boot, n.syncNames(ctx, a)
	}, nil
}

// syncContent makes what is written to the content store durable, unless the configuration turns that off.
func (n *Node) syncContent(ctx context.Context) error {
	a := n.active.Load()
	if !a.Settings.Sync || !durable.Supported {
		return nil
	}
	return n.syncNames(ctx, a)
}

// syncNames makes the names of the blobs in the content store durable. containerd syncs the blobs, but not their names
// (Commit in plugins/content/local/writer.go). It does nothing if the directory of the content store is not known.
func (n *Node) syncNames(ctx context.Context, a *active) error {
	if a.ContentDir == "" {
		return nil
	}
	blobs := filepath.Join(a.ContentDir, "blobs")
	algorithms, err := os.ReadDir(blobs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there is no blob
	}
	if err != nil {
		return fmt.Errorf("list the directories of the content store: %w", err)
	}
	paths := []string{blobs}
	for _, algorithm := range algorithms {
		paths = append(paths, filepath.Join(blobs, algorithm.Name()))
	}
	return n.barrier.SyncNames(ctx, paths...)
}
