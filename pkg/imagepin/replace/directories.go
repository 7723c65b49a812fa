package replace

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/upstream"
)

// supported reports whether a snapshotter is one of containerd's that have a directory for each snapshot. A snapshotter of
// another name may keep more about a directory than the kernel shows, for example what it has mounted there.
func supported(snapshotter string) bool {
	return snapshotter == upstream.Overlayfs || snapshotter == "native"
}

// tree are the directories of snapshots that stand on each other, lowest first.
type tree struct {
	dirs []string
	// copied reports that each directory also has the files of its parent (native).
	copied bool
}

// directories returns the directories of committed snapshots. Each one stands on the one before. The context must have a
// lease.
func (j *job) directories(ctx context.Context, names []string) (tree, error) {
	top := names[len(names)-1]
	mounts, err := j.mountsOn(ctx, top, j.snapshotter.View)
	if err != nil {
		return tree{}, err
	}
	if isOverlay(mounts) {
		// A view of a single layer is a bind mount without the options of the snapshotter.
		if mounts, err = j.mountsOn(ctx, top, j.snapshotter.Prepare); err != nil {
			return tree{}, err
		}
		return j.overlayDirectories(mounts, len(names))
	}
	t := tree{copied: true}
	for _, name := range names {
		mounts, err := j.mountsOn(ctx, name, j.snapshotter.View)
		if err != nil {
			return tree{}, err
		}
		if len(mounts) != 1 || mounts[0].Type != "bind" || !filepath.IsAbs(mounts[0].Source) {
			return tree{}, j.notReplaceable("the mounts of snapshot " + name + " are not those of a directory")
		}
		t.dirs = append(t.dirs, mounts[0].Source)
	}
	return t, nil
}

type newSnapshot func(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error)

// mountsOn returns the mounts of a new snapshot on another one. It removes the new snapshot again.
func (j *job) mountsOn(ctx context.Context, parent string, create newSnapshot) ([]mount.Mount, error) {
	id, ok := leases.FromContext(ctx)
	if !ok {
		return nil, fmt.Errorf("replace snapshot %s: the context has no lease: %w", parent, errdefs.ErrFailedPrecondition)
	}
	key := scratchPrefix + id + "-look"
	mounts, err := create(ctx, key, parent)
	if err != nil {
		return nil, fmt.Errorf("look at snapshot %s: %w", parent, err)
	}
	if err := j.snapshotter.Remove(context.WithoutCancel(ctx), key); err != nil {
		return nil, fmt.Errorf("look at snapshot %s: %w", parent, err)
	}
	return mounts, nil
}

// isOverlay reports whether the mounts of a view are those of containerd's overlayfs snapshotter. The view of one layer is a
// bind mount of its directory fs.
func isOverlay(mounts []mount.Mount) bool {
	return len(mounts) == 1 && (mounts[0].Type == "overlay" || mounts[0].Type == "bind" && filepath.Base(mounts[0].Source) == "fs")
}

// overlayDirectories returns the directories of the n uppermost snapshots below an active snapshot with these mounts.
func (j *job) overlayDirectories(mounts []mount.Mount, n int) (tree, error) {
	if len(mounts) != 1 || mounts[0].Type != "overlay" {
		return tree{}, j.notReplaceable("the mounts on its snapshot are not those of one overlay")
	}
	if feature := usedFeature(mounts[0].Options, kernelParameter); feature != "" {
		return tree{}, j.notReplaceable("overlayfs uses " + feature)
	}
	lower := upstream.LowerDirs(mounts[0].Options)
	if len(lower) < n {
		return tree{}, j.notReplaceable(fmt.Sprintf("the overlay on its snapshot has %d lower directories, and the image has more layers", len(lower)))
	}
	var t tree
	for i := n - 1; i >= 0; i-- {
		if !filepath.IsAbs(lower[i]) {
			return tree{}, j.notReplaceable(fmt.Sprintf("lower directory %q is not a path of the host", lower[i]))
		}
		t.dirs = append(t.dirs, lower[i])
	}
	return t, nil
}

// usedFeature returns the overlayfs feature with which a lower directory must not change between two mounts, because the
// upper directory refers to it by file handles, inode numbers or paths. It returns "" if none is used. Mounts have the
// features of their options and, for those that no option names, of the kernel's parameters. The containers of the node
// were mounted with the same options, because the snapshotter returns the same to all. With userxattr, the kernel
// uses neither metacopy nor redirect_dir (ovl_fs_params_verify in fs/overlayfs/params.c).
func usedFeature(options []string, parameter func(name string) bool) string {
	set := make(map[string]string)
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		set[name] = value
	}
	_, user := set["userxattr"]
	for _, f := range []struct {
		name, parameter string
		disabled        bool
	}{
		{"index", "index", false}, {"nfs_export", "nfs_export", false}, {"metacopy", "metacopy", user},
		{"redirect_dir", "redirect_dir", user}, {"xino", "xino_auto", false},
	} {
		value, named := set[f.name]
		if named && (value == "on" || value == "auto") || !named && !f.disabled && parameter(f.parameter) {
			return f.name
		}
	}
	return ""
}
