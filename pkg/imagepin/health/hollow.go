package health

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// viewPrefix begins the names of the snapshots by which directories are looked at.
const viewPrefix = "imagepin-check-"

// Hollow says which directory a snapshot or one below it lacks; nothing where all
// are there, or where that cannot be told. It makes a view of the snapshot, which
// is removed again; the context carries a lease.
func (c *Checker) Hollow(ctx context.Context, sn store.Snapshot) (why string, _ error) {
	snapshotter := c.Snapshotter(sn.Snapshotter)
	id, ok := leases.FromContext(ctx)
	if !ok {
		return "", fmt.Errorf("look at snapshot %s without a lease: %w", sn.ChainID, errdefs.ErrFailedPrecondition)
	}
	key := viewPrefix + id + "-" + sn.ChainID.Encoded()
	mounts, err := snapshotter.View(ctx, key, sn.ChainID.String())
	failpoint.Reach("check.viewed")
	defer func() { _ = snapshotter.Remove(context.WithoutCancel(ctx), key) }() // or else the lease's end does
	switch {
	case errdefs.IsNotFound(err):
		return "", nil // the inventory says so
	case err != nil && missing(err):
		return fmt.Sprintf("a directory of snapshot %s is gone: %v", sn.ChainID, err), nil
	case err != nil:
		return "", fmt.Errorf("look at snapshot %s in %s: %w", sn.ChainID, sn.Snapshotter, err)
	}
	for _, path := range directories(mounts) {
		if gone(path) {
			return fmt.Sprintf("directory %s of snapshot %s is gone", path, sn.ChainID), nil
		}
	}
	return "", nil
}

// missing reports whether an error says that a file is not there. What crosses
// containerd's socket keeps only its text.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), syscall.ENOENT.Error())
}

// directories are the paths of the host that mounts are made of. What a mount
// manager is to fill in is left out.
func directories(mounts []mount.Mount) []string {
	var all []string
	add := func(path string) {
		if filepath.IsAbs(path) && !strings.Contains(path, "{{") {
			all = append(all, path)
		}
	}
	for _, m := range mounts {
		add(m.Source)
		for _, option := range m.Options {
			if lower, ok := strings.CutPrefix(option, "lowerdir="); ok {
				for _, path := range strings.Split(lower, ":") {
					add(path)
				}
			}
		}
	}
	return all
}

// gone reports whether a path is not there, though what is two levels above it,
// where a snapshotter has all its snapshots, can be seen.
func gone(path string) bool {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, err := os.Stat(filepath.Dir(filepath.Dir(path)))
	return err == nil
}

// RemoveHollow removes what cannot be used of an entry's snapshots: the lowest
// whose directory is gone, and all that stand on it. It fails with
// ErrFailedPrecondition, and removes nothing, where a container does. The context
// carries a lease.
func (c *Checker) RemoveHollow(ctx context.Context, e imagepin.Entry) error {
	snapshotter := c.Snapshotter(e.Target.Snapshotter)
	parents, children := make(map[string]string), make(map[string][]string)
	inUse := make(map[string]bool)
	err := snapshotter.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		parents[i.Name] = i.Parent
		children[i.Parent] = append(children[i.Parent], i.Name)
		inUse[i.Name] = i.Kind != snapshots.KindCommitted && !strings.HasPrefix(i.Name, viewPrefix)
		return nil
	})
	if err != nil {
		return err
	}
	var chain []string // the lowest first
	for name := e.ChainID.String(); name != ""; name = parents[name] {
		chain = append([]string{name}, chain...)
	}
	for _, name := range chain {
		why, err := c.Hollow(ctx, store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: digest.Digest(name)})
		if err != nil {
			return err
		}
		if why == "" {
			continue
		}
		doomed := above(name, children)
		for _, n := range doomed {
			if inUse[n] {
				return fmt.Errorf("%s, and %s uses it: %w", why, n, errdefs.ErrFailedPrecondition)
			}
		}
		for _, n := range doomed {
			failpoint.Reach("check.remove")
			err := snapshotter.Remove(ctx, n)
			if errdefs.IsFailedPrecondition(err) {
				err = c.collectSnapshot(ctx, store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: digest.Digest(n)}, err)
			}
			if err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("remove snapshot %s: %w", n, err)
			}
		}
		return nil
	}
	return nil
}

// collectSnapshot has the garbage collection remove a snapshot that refuses to be
// removed: containerd may remember snapshots on it that it has collected itself.
// refusal is the error where something needs it.
func (c *Checker) collectSnapshot(ctx context.Context, sn store.Snapshot, refusal error) error {
	if err := c.Images.ReleaseSnapshot(ctx, sn); err != nil {
		return err
	}
	if err := c.Images.Collect(ctx); err != nil {
		return err
	}
	if here, err := c.Images.HasSnapshot(ctx, sn.Snapshotter, sn.ChainID); err != nil || !here {
		return err
	}
	return refusal
}

// above gives a snapshot and all that stand on it, the highest first.
func above(name string, children map[string][]string) []string {
	var all []string
	for _, child := range children[name] {
		all = append(all, above(child, children)...)
	}
	return append(all, name)
}
