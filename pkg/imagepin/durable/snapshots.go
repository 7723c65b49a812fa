package durable

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/upstream"
)

// Snapshots knows where the committed snapshots of a snapshotter are, and which of them are durable. A snapshot is known by its name
// and by when it was created: another one can have the same name later. It is safe for concurrent use.
type Snapshots struct {
	root string                  // of the snapshotter
	tree func(path string) *Tree // returns a directory that can be written ahead

	mu       sync.Mutex
	active   map[string]string  // the directories of active snapshots, by key
	unpacked map[snapshot]*Tree // the directories of snapshots that are not known to be durable
	durable  map[snapshot]bool
	ahead    ahead // writes directories while other layers are unpacked
}

type snapshot struct {
	name    string
	created int64 // in nanoseconds since the epoch
}

func identify(i snapshots.Info) snapshot { return snapshot{i.Name, i.Created.UnixNano()} }

// maxKnown is how many snapshots are remembered as durable, and as unpacked. When there are more, all are forgotten, and found again.
const maxKnown = 10000

// Snapshots returns what is known of the snapshots of containerd's own snapshotter in a directory. It is the same for all calls. It
// is for snapshotters with a directory for each snapshot, called snapshots/ID: overlayfs, native and erofs.
func (b *Barrier) Snapshots(root string) *Snapshots {
	root = filepath.Clean(root)
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.snapshots[root]
	if s == nil {
		s = &Snapshots{root: root, tree: b.writtenAhead, active: make(map[string]string), unpacked: make(map[snapshot]*Tree), durable: make(map[snapshot]bool)}
		b.snapshots[root] = s
	}
	return s
}

// Watch returns a snapshotter that notes where the snapshots are that are made with it. The unpacker gets their mounts anyway, and no
// call of a snapshotter returns those of a committed snapshot.
func (s *Snapshots) Watch(sn snapshots.Snapshotter) snapshots.Snapshotter { return &watched{sn, s} }

type watched struct {
	snapshots.Snapshotter
	known *Snapshots
}

// Prepare implements snapshots.Snapshotter.
func (w *watched) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	mounts, err := w.Snapshotter.Prepare(ctx, key, parent, opts...)
	if err == nil {
		w.known.prepared(key, mounts)
	}
	return mounts, err
}

// Commit implements snapshots.Snapshotter.
func (w *watched) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	err := w.Snapshotter.Commit(ctx, name, key, opts...)
	dir := w.known.ended(key)
	if err != nil || dir == "" {
		return err
	}
	if info, err := w.Snapshotter.Stat(ctx, name); err == nil {
		w.known.committed(info, dir)
	}
	return nil
}

// Remove implements snapshots.Snapshotter.
func (w *watched) Remove(ctx context.Context, key string) error {
	w.known.ended(key)
	return w.Snapshotter.Remove(ctx, key)
}

// prepared notes the directory of an active snapshot, if its mounts have one that is written, and all others are directories of
// snapshots too: the EROFS snapshotter can take a layer from elsewhere.
func (s *Snapshots) prepared(key string, mounts []mount.Mount) {
	if _, err := s.directories(mounts); err != nil {
		return
	}
	for _, m := range mounts {
		for _, path := range append(optionPaths(m, "upperdir"), m.Source) {
			written := path != m.Source || m.Type == "bind"
			if dir, ok := s.directory(path); ok && written {
				s.mu.Lock()
				s.active[key] = dir
				s.mu.Unlock()
				return
			}
		}
	}
}

// ended returns the directory of a snapshot that is active no longer.
func (s *Snapshots) ended(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := s.active[key]
	delete(s.active, key)
	return dir
}

// committed notes the directory of a committed snapshot, and begins to write it when those are written that were committed before.
func (s *Snapshots) committed(info snapshots.Info, dir string) {
	t := s.tree(dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unpacked) >= maxKnown {
		maps.DeleteFunc(s.unpacked, func(_ snapshot, t *Tree) bool { return t.lost() == nil })
	}
	s.unpacked[identify(info)] = t
	if s.ahead.add(t) {
		go s.writeAhead()
	}
}

func (s *Snapshots) writeAhead() {
	for {
		s.mu.Lock()
		t := s.ahead.next()
		s.mu.Unlock()
		if t == nil {
			return
		}
		t.writeOnce()
	}
}

// SetDurable notes that snapshots are durable, because all that was written to the disk before is. It fails with ErrUnavailable, and notes
// nothing, if it is known that the disk has lost a file of them: a later call of the kernel does not report that again.
func (s *Snapshots) SetDurable(infos ...snapshots.Info) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range infos {
		if t := s.unpacked[identify(i)]; t != nil && t.lost() != nil {
			return t.lost()
		}
	}
	if len(s.durable) >= maxKnown {
		clear(s.durable)
	}
	for _, i := range infos {
		s.durable[identify(i)] = true
		delete(s.unpacked, identify(i))
	}
	return nil
}

// Missing returns the snapshots from the top one of an image down that are not known to be durable, highest first. Those below a
// durable one are durable. It fails with the error of the snapshotter.
func (s *Snapshots) Missing(ctx context.Context, sn snapshots.Snapshotter, top string) (missing []snapshots.Info, _ error) {
	for name := top; name != ""; {
		info, err := sn.Stat(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("find snapshot %s: %w", name, err)
		}
		s.mu.Lock()
		durable := s.durable[identify(info)]
		s.mu.Unlock()
		if durable {
			break
		}
		missing = append(missing, info)
		name = info.Parent
	}
	return missing, nil
}

// Directories returns the directories of snapshots that [Snapshots.Missing] has returned. It creates views of those that were unpacked
// by another process, and removes them again; ctx must have a lease then, which [Snapshots.Known] reports. It fails with
// ErrNotImplemented if the mounts are not those of directories of the snapshotter, and with the error of the snapshotter.
func (s *Snapshots) Directories(ctx context.Context, sn snapshots.Snapshotter, missing []snapshots.Info) ([]*Tree, error) {
	dirs, unknown := s.find(missing)
	if len(unknown) == 0 {
		return dirs, nil
	}
	// The mounts of a view have the directories of all snapshots below, or a copy has all that is in them.
	below, err := s.view(ctx, sn, unknown[0].Name)
	if err != nil {
		return nil, err
	}
	dirs = append(dirs, trees(below)...)
	depth := len(missing) - slices.IndexFunc(missing, func(i snapshots.Info) bool { return i.Name == unknown[0].Name })
	if len(below) >= depth {
		return dirs, nil
	}
	for _, i := range unknown[1:] {
		own, err := s.view(ctx, sn, i.Name)
		if err != nil {
			return nil, err
		}
		if len(below) != 1 || len(own) != 1 {
			return nil, fmt.Errorf("the mounts of snapshot %s have too few directories: %w", unknown[0].Name, errdefs.ErrNotImplemented)
		}
		dirs = append(dirs, trees(own)...)
	}
	return dirs, nil
}

// Known reports whether [Snapshots.Directories] needs no view.
func (s *Snapshots) Known(missing []snapshots.Info) bool {
	_, unknown := s.find(missing)
	return len(unknown) == 0
}

// find returns the directories that are known, and the snapshots that have none.
func (s *Snapshots) find(all []snapshots.Info) (dirs []*Tree, unknown []snapshots.Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range all {
		if dir, ok := s.unpacked[identify(i)]; ok {
			dirs = append(dirs, dir)
		} else {
			unknown = append(unknown, i)
		}
	}
	return dirs, unknown
}

// ViewPrefix is the prefix of the names of the views that are used to find the directories of snapshots.
const ViewPrefix = "imagepin-durable-"

// view returns the directories in the mounts of a view of a snapshot. The lease removes the view if the process is killed.
func (s *Snapshots) view(ctx context.Context, sn snapshots.Snapshotter, name string) ([]string, error) {
	id, ok := leases.FromContext(ctx)
	if !ok {
		return nil, fmt.Errorf("find the directory of snapshot %s: the context has no lease: %w", name, errdefs.ErrFailedPrecondition)
	}
	key := ViewPrefix + id + "-" + name
	mounts, err := sn.View(ctx, key, name)
	if err != nil {
		return nil, fmt.Errorf("find the directory of snapshot %s: %w", name, err)
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := sn.Remove(cleanup, key); err != nil {
		return nil, fmt.Errorf("find the directory of snapshot %s: %w", name, err)
	}
	return s.directories(mounts)
}

// cleanupTimeout bounds cleanup after the caller has gone.
const cleanupTimeout = 30 * time.Second

// directories returns the directories of snapshots that mounts have, each once. It fails with ErrNotImplemented if a path is not below
// the snapshotter's directory.
func (s *Snapshots) directories(mounts []mount.Mount) (dirs []string, _ error) {
	for _, m := range mounts {
		paths := optionPaths(m, "lowerdir", "upperdir", "device")
		// An EROFS mount with devices has the files of these, and its source is made from them when it is needed.
		if filepath.IsAbs(m.Source) && len(optionPaths(m, "device")) == 0 {
			paths = append(paths, m.Source)
		}
		for _, path := range paths {
			dir, ok := s.directory(path)
			if !ok {
				return nil, fmt.Errorf("%s is not in a directory of the snapshotter in %s: %w", path, s.root, errdefs.ErrNotImplemented)
			}
			if !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs, nil
}

// directory returns the directory of the snapshot that has a path.
func (s *Snapshots) directory(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, filepath.Join(s.root, upstream.SnapshotsDir)+"/")
	id, _, _ := strings.Cut(rest, "/")
	return filepath.Join(s.root, upstream.SnapshotsDir, id), ok && id != "" && id != ".."
}

// optionPaths returns the absolute paths in options of a mount.
func optionPaths(m mount.Mount, names ...string) (paths []string) {
	for _, option := range m.Options {
		name, value, _ := strings.Cut(option, "=")
		if !slices.Contains(names, name) {
			continue
		}
		for path := range strings.SplitSeq(value, ":") {
			if filepath.IsAbs(path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// Oldest returns when the first of some snapshots was created.
func Oldest(all []snapshots.Info) time.Time {
	return slices.MinFunc(all, func(a, b snapshots.Info) int { return a.Created.Compare(b.Created) }).Created
}
