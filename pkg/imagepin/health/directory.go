package health

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/family"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// missingDirectory describes which directory of a snapshot or of its parents is gone. It returns "" if all directories exist, or
// if this is unknown. It creates a view of the snapshot and removes it again. The context must have a lease, or MissingDirectory
// returns ErrFailedPrecondition.
func (c *Checker) missingDirectory(ctx context.Context, sn store.Snapshot) (why string, _ error) {
	err := c.withView(ctx, sn, func(mounts []mount.Mount) error {
		for _, path := range directories(mounts) {
			if gone(path) {
				why = fmt.Sprintf("directory %s of snapshot %s is gone", path, sn.ChainID)
				return nil
			}
		}
		return nil
	})
	switch {
	case errdefs.IsNotFound(err):
		return "", nil // the inventory reports this
	case err != nil && isNotExist(err):
		return fmt.Sprintf("a directory of snapshot %s is gone: %v", sn.ChainID, err), nil
	case err != nil:
		return "", fmt.Errorf("check snapshot %s in %s: %w", sn.ChainID, sn.Snapshotter, err)
	}
	return why, nil
}

// isNotExist reports whether an error means that a file does not exist. Errors from containerd's socket only keep their
// text.
func isNotExist(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errno.Is(err, syscall.ENOENT)
}

// directories returns the host paths in mounts. It leaves out paths with placeholders for a mount manager, and devices: the
// mounts of containerd's btrfs and devmapper snapshotters have one, and imagepin serve may have a /dev of its own
// (PrivateDevices in systemd.exec(5)), which has the host's /dev/shm.
func directories(mounts []mount.Mount) []string {
	var all []string
	for _, m := range mounts {
		for _, path := range append([]string{m.Source}, upstream.LowerDirs(m.Options)...) {
			device := strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/")
			if filepath.IsAbs(path) && !device && !strings.Contains(path, "{{") {
				all = append(all, path)
			}
		}
	}
	return all
}

// gone reports whether a path does not exist although the directory two levels above it does. The snapshotter has all
// its snapshots there.
func gone(path string) bool {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, err := os.Stat(filepath.Dir(filepath.Dir(path)))
	return err == nil
}

// RemoveUnusable removes the unusable snapshots of an entry: the lowest one whose directory is gone or whose files are damaged,
// and all its descendants. If a container uses one of them, it removes at most what abandoned unpacks have left on them, and returns
// ErrFailedPrecondition. It knows of damaged files from earlier checks. The context must have a lease.
//
// Before the removal, it evicts all keys that need one of these snapshots, also keys of other images: what is unpacked again may be lost
// when the power is cut. It returns them for repair, also with an error.
func (c *Checker) RemoveUnusable(ctx context.Context, e imagepin.Entry) (evicted []imagepin.Entry, _ error) {
	snapshotter := c.config.Snapshotter(e.Target.Snapshotter)
	all, err := family.Of(ctx, snapshotter)
	if err != nil {
		return nil, err
	}
	lowest, why, err := c.lowestUnusable(ctx, e, all)
	if err != nil || lowest == "" {
		return nil, err
	}
	if err := c.damage.mark(ctx, snapshotter, store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: lowest}); err != nil {
		return nil, fmt.Errorf("label snapshot %s: %w", lowest, err)
	}
	for _, n := range all.WithDescendants(lowest.String()) {
		if c.suspects.isAbandoned(all[n]) {
			if err := snapshotter.Remove(ctx, n); err != nil && !errdefs.IsNotFound(err) {
				return nil, fmt.Errorf("remove snapshot %s: %w", n, err)
			}
			delete(all, n)
		}
	}
	for _, n := range all.WithDescendants(lowest.String()) {
		if isInUse(all[n]) {
			return nil, fmt.Errorf("%s, and container %s uses it: repair the image again when its containers are removed: %w", why, n, errdefs.ErrFailedPrecondition)
		}
	}
	toRemove := all.WithDescendants(lowest.String())
	chainIDs := make([]digest.Digest, len(toRemove))
	for i, name := range toRemove {
		chainIDs[i] = digest.Digest(name)
	}
	if evicted, err = c.config.Images.EvictUnusable(ctx, e.Target.Snapshotter, chainIDs, why); err != nil {
		return evicted, err
	}
	if err := c.removeAll(ctx, e.Target.Snapshotter, toRemove); err != nil {
		return evicted, err
	}
	for _, id := range chainIDs {
		c.damage.forgetReplaced(store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: id})
	}
	return evicted, nil
}

// removeAll removes snapshots in this order, and the views of checks on them that are created meanwhile.
func (c *Checker) removeAll(ctx context.Context, snapshotter string, names []string) error {
	for _, n := range names {
		failpoint.Reach("check.remove")
		err := c.config.Snapshotter(snapshotter).Remove(ctx, n)
		if errdefs.IsFailedPrecondition(err) {
			err = c.removeWithChildren(ctx, snapshotter, n)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove snapshot %s: %w", n, err)
		}
	}
	return nil
}

// removeWithChildren removes a snapshot on which something stands that is no snapshot of a container or an image.
func (c *Checker) removeWithChildren(ctx context.Context, snapshotter, name string) error {
	sn := c.config.Snapshotter(snapshotter)
	now, err := family.Of(ctx, sn)
	if err != nil {
		return err
	}
	if err := c.removeInterrupted(ctx, snapshotter, now); err != nil {
		return err
	}
	refusal := sn.Remove(ctx, name)
	if !errdefs.IsFailedPrecondition(refusal) {
		return refusal
	}
	above := now.WithDescendants(name)
	if above = above[:len(above)-1]; len(above) > 0 && !slices.ContainsFunc(above, func(n string) bool { return !isView(n) }) {
		return c.removeAll(ctx, snapshotter, append(above, name))
	}
	return c.collectSnapshot(ctx, store.Snapshot{Snapshotter: snapshotter, ChainID: digest.Digest(name)}, refusal)
}

// LowestUnusable returns the chain ID of the lowest snapshot of an entry whose directory is gone or whose files are known to be damaged.
// It returns "" if there is none.
func (c *Checker) LowestUnusable(ctx context.Context, e imagepin.Entry) (lowest digest.Digest, _ error) {
	err := lease.With(ctx, c.config.Leases, lease.Use, func(ctx context.Context) error {
		all, err := family.Of(ctx, c.config.Snapshotter(e.Target.Snapshotter))
		if err == nil {
			lowest, _, err = c.lowestUnusable(ctx, e, all)
		}
		return err
	})
	return lowest, err
}

// lowestUnusable returns the chain ID of the lowest snapshot of an entry that is unusable, and why. It returns "" if nothing is known.
func (c *Checker) lowestUnusable(ctx context.Context, e imagepin.Entry, all family.Family) (lowest digest.Digest, why string, _ error) {
	for _, name := range c.chainOf(ctx, e, all) {
		info, ok := all[name]
		if !ok {
			continue
		}
		if guestpull.IsEmpty(info) && c.needsFiles(e) {
			return digest.Digest(name), onlyInGuests, nil
		}
		why, err := c.unusable(ctx, store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: digest.Digest(name)})
		if err != nil || why != "" {
			return digest.Digest(name), why, err
		}
	}
	return "", "", nil
}

// chainOf returns the names of an entry's snapshots, lowest first. The highest ones may be gone: a removal that was interrupted has
// removed them.
func (c *Checker) chainOf(ctx context.Context, e imagepin.Entry, all family.Family) (names []string) {
	l, err := blobs.LayersOf(ctx, c.config.Content, e)
	if err != nil {
		return all.Chain(e.ChainID.String())
	}
	for _, d := range l.ChainIDs {
		names = append(names, d.String())
	}
	return names
}

// isInUse reports whether a snapshot is that of a container, or of something else than a check or a sync.
func isInUse(i snapshots.Info) bool { return i.Kind != snapshots.KindCommitted && !isView(i.Name) }

// isView reports whether a snapshot is the view of a check or a sync.
func isView(name string) bool {
	return strings.HasPrefix(name, viewPrefix) || strings.HasPrefix(name, durable.ViewPrefix)
}

// unusable describes why a snapshot by itself is unusable. It returns "" if nothing is known.
func (c *Checker) unusable(ctx context.Context, sn store.Snapshot) (why string, _ error) {
	why, err := c.damage.of(ctx, c.config.Snapshotter(sn.Snapshotter), sn)
	if err != nil || why != "" {
		return why, err
	}
	return c.missingDirectory(ctx, sn)
}

// collectSnapshot removes a snapshot by garbage collection if a direct removal fails. containerd may still have records
// of child snapshots that it has collected itself. collectSnapshot returns refusal if the snapshot is still needed.
func (c *Checker) collectSnapshot(ctx context.Context, sn store.Snapshot, refusal error) error {
	if err := c.config.Images.ReleaseSnapshot(ctx, sn); err != nil {
		return err
	}
	if err := c.config.Images.Collect(ctx); err != nil {
		return err
	}
	if here, err := c.config.Images.HasSnapshot(ctx, sn.Snapshotter, sn.ChainID); err != nil || !here {
		return err
	}
	return refusal
}

// removeInterrupted removes the snapshots of unpacks that were committed when the power was cut: containerd still has their record, and its
// snapshotter has them under their new name, so no list has them. The lease of another tool's pull can keep them, and what they stand on.
// listed are the snapshots that the list has.
func (c *Checker) removeInterrupted(ctx context.Context, snapshotter string, listed family.Family) error {
	all, err := c.config.Leases.List(ctx)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	sn := c.config.Snapshotter(snapshotter)
	for _, l := range all {
		held, err := c.config.Leases.ListResources(ctx, l)
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("list what lease %s holds: %w", l.ID, err)
		}
		for _, r := range held {
			if _, ok := listed[r.ID]; ok || r.Type != upstream.SnapshotType+snapshotter || !strings.HasPrefix(r.ID, snapshots.UnpackKeyPrefix+"-") {
				continue
			}
			if _, err := sn.Stat(ctx, r.ID); !errdefs.IsNotFound(err) {
				continue
			}
			if err := sn.Remove(ctx, r.ID); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("remove snapshot %s: %w", r.ID, err)
			}
		}
	}
	return nil
}
