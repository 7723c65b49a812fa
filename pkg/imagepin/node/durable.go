package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// syncer makes images durable. A nil syncer does nothing.
type syncer struct {
	barrier *durable.Barrier
	boot    string
	roots   map[string]string // by snapshotter
	content string            // the directory of the content store, or empty if it is not known

	known       map[string]*durable.Snapshots // by snapshotter; those with a directory for each snapshot
	snapshotter func(name string) snapshots.Snapshotter
	leases      leases.Manager
}

// withDirectories are containerd's snapshotters that have a directory for each snapshot, with nothing of another one in it.
var withDirectories = []string{"erofs", "native", upstream.Overlayfs}

// knownSnapshots returns what is known of a snapshotter's snapshots; nil if it has no directories, or if images are not made durable.
func (n *Node) knownSnapshots(a *active, name string) *durable.Snapshots {
	sn := a.Snapshotters[name]
	if !a.Settings.Sync || !durable.Supported || sn.Root == "" || !sn.isEager(name) || !slices.Contains(withDirectories, name) {
		return nil
	}
	return n.barrier.Snapshots(sn.Root)
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
	s := &syncer{
		barrier: n.barrier, boot: durable.BootID(), roots: make(map[string]string), content: a.ContentDir,
		known: make(map[string]*durable.Snapshots), snapshotter: n.containerd.Snapshots, leases: n.containerd.Leases,
	}
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
			if known := n.knownSnapshots(a, name); known != nil {
				s.known[name] = known
			}
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
func (s *syncer) image(ctx context.Context, sn store.Snapshot) (mark string, _ error) {
	root, ok := s.roots[sn.Snapshotter]
	if !ok {
		return "", s.names(ctx)
	}
	if err := s.chain(ctx, root, sn); err != nil {
		return "", err
	}
	return s.boot, s.names(ctx)
}

// all makes all snapshots of a snapshotter durable, also those that were made durable before, and have other files now.
func (s *syncer) all(ctx context.Context, snapshotter string) error {
	if s == nil {
		return nil
	}
	root, ok := s.roots[snapshotter]
	if !ok {
		return nil
	}
	return s.barrier.Sync(ctx, root)
}

// images makes images durable that have no mark, such as those of other tools.
func (s *syncer) images(ctx context.Context, entries []imagepin.Entry) error {
	if s == nil {
		return nil
	}
	done := make(map[store.Snapshot]bool)
	for _, e := range entries {
		sn := store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: e.ChainID}
		root, ok := s.roots[sn.Snapshotter]
		if !ok || e.Durable != "" || done[sn] {
			continue
		}
		if err := s.chain(ctx, root, sn); err != nil {
			return err
		}
		done[sn] = true
	}
	return s.names(ctx)
}

// chain makes a snapshot durable, and those below. It writes nothing if this process has done so before.
func (s *syncer) chain(ctx context.Context, root string, sn store.Snapshot) error {
	if sn.ChainID == "" {
		return nil // it has no layers
	}
	known := s.known[sn.Snapshotter]
	if known == nil {
		return s.barrier.Sync(ctx, root)
	}
	service := s.snapshotter(sn.Snapshotter)
	missing, err := known.Missing(ctx, service, sn.ChainID.String())
	if err != nil {
		return s.withoutDirectories(ctx, root, sn, err)
	}
	if len(missing) == 0 {
		return nil
	}
	dirs, err := s.directories(ctx, known, service, missing)
	if err == nil {
		err = s.barrier.SyncTrees(ctx, root, durable.Oldest(missing), dirs...)
	} else {
		err = s.withoutDirectories(ctx, root, sn, err)
	}
	if err != nil {
		return err
	}
	return known.SetDurable(missing...)
}

// directories returns the directories of snapshots. It creates a lease if views are needed.
func (s *syncer) directories(ctx context.Context, known *durable.Snapshots, service snapshots.Snapshotter, missing []snapshots.Info) (dirs []*durable.Tree, _ error) {
	if _, leased := leases.FromContext(ctx); leased || known.Known(missing) {
		return known.Directories(ctx, service, missing)
	}
	err := lease.With(ctx, s.leases, lease.Use, func(ctx context.Context) (err error) {
		dirs, err = known.Directories(ctx, service, missing)
		return err
	})
	return dirs, err
}

// withoutDirectories syncs the file system of a snapshot whose directories cannot be found.
func (s *syncer) withoutDirectories(ctx context.Context, root string, sn store.Snapshot, why error) error {
	if ctx.Err() == nil {
		log.G(ctx).WithError(why).WithField("snapshotter", sn.Snapshotter).WithField("snapshot", sn.ChainID).Debug("syncing the whole file system")
	}
	return s.barrier.Sync(ctx, root)
}

// names makes the names of the blobs in the content store durable. containerd syncs a blob and the directory of its name,
// and no directory above it.
func (s *syncer) names(ctx context.Context) error {
	if s == nil || s.content == "" {
		return nil
	}
	blobs := filepath.Join(s.content, upstream.BlobsDir)
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
