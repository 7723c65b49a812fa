package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
)

// syncer makes images durable. A nil syncer does nothing.
type syncer struct {
	barrier *durable.Barrier
	boot    string
	roots   map[string]string // by snapshotter
	content string            // the directory of the content store, or empty if it is not known
}

// syncerOf returns the syncer of a setup; nil if images are not made durable.
//
// It opens the directories of containerd's own snapshotters and of its content store before anything is written, and fails with
// ErrInvalidArgument if imagepin serve cannot. It logs a warning about another snapshotter whose directory is not known or cannot be
// opened: it may unpack nothing.
func (n *Node) syncerOf(a *active) (*syncer, error) {
	if !a.Settings.Sync || !durable.Supported {
		return nil, nil
	}
	refuse := func(what string, err error) error {
		return fmt.Errorf("[plugins.%q] sync: open the directory of %s: %w: %w", config.Section, what, err, errdefs.ErrInvalidArgument)
	}
	s := &syncer{barrier: n.barrier, boot: durable.BootID(), roots: make(map[string]string), content: a.ContentDir}
	for _, name := range a.runtimes.Snapshotters() {
		sn := a.Snapshotters[name]
		own := sn.isEager(name)
		root := sn.Root
		if !own {
			root = sn.Exports[plugins.SnapshotterRootDir] // Root is a guess without it
		}
		err := n.barrier.Open(root)
		switch {
		case err == nil:
			s.roots[name] = root
		case n.mode == ModeServe && own:
			return nil, refuse("the snapshotter "+name, err)
		default:
			log.L.WithError(err).Warnf("images in the snapshotter %s may be lost when the power is cut: its directory cannot be opened", name)
		}
	}
	if n.mode == ModeServe && s.content != "" {
		// containerd before 2.3 makes the directory with the first blob.
		if err := n.barrier.Open(filepath.Dir(s.content)); err != nil {
			return nil, refuse("the content store", err)
		}
	}
	return s, nil
}

// image implements [pull.Settings.Durable].
func (s *syncer) image(ctx context.Context, snapshotter string) (mark string, _ error) {
	root, ok := s.roots[snapshotter]
	if !ok {
		return "", s.names(ctx)
	}
	if err := s.barrier.Sync(ctx, root); err != nil {
		return "", err
	}
	return s.boot, s.names(ctx)
}

// all makes everything durable that is unpacked on the node, also by other tools.
func (s *syncer) all(ctx context.Context) error {
	if s == nil {
		return nil
	}
	if err := s.barrier.Sync(ctx, slices.Sorted(maps.Values(s.roots))...); err != nil {
		return err
	}
	return s.names(ctx)
}

// names makes the names of the blobs in the content store durable. containerd syncs the blobs, but not their names
// (Commit in plugins/content/local/writer.go).
func (s *syncer) names(ctx context.Context) error {
	if s == nil || s.content == "" {
		return nil
	}
	blobs := filepath.Join(s.content, "blobs")
	algorithms, err := os.ReadDir(blobs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there is no blob
	}
	if err != nil {
		return fmt.Errorf("list the directories of the content store: %w", err)
	}
	paths := []string{s.content, blobs}
	for _, algorithm := range algorithms {
		if algorithm.IsDir() {
			paths = append(paths, filepath.Join(blobs, algorithm.Name()))
		}
	}
	return s.barrier.SyncNames(ctx, paths...)
}
