package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// releaseSnapshots removes the reference from an image's configuration to its snapshot in each snapshotter for which
// the image has no keys any more. These snapshots are then freed, and other snapshotters keep theirs.
func (s *writer) releaseSnapshots(ctx context.Context, removed []imagepin.Entry) error {
	seen := make(map[Unpacked]bool)
	for _, e := range removed {
		u := Unpacked{e.ImageID, e.Target.Snapshotter}
		if seen[u] || s.isKept(u) {
			continue
		}
		seen[u] = true
		failpoint.Reach("remove.release")
		if err := s.release(ctx, u); err != nil {
			return err
		}
	}
	failpoint.Reach("remove.released")
	return nil
}

// isNeeded reports whether a key needs an image to be unpacked in a snapshotter.
func (s *reader) isNeeded(u Unpacked) bool {
	return slices.ContainsFunc(s.ByID(u.ImageID), func(e imagepin.Entry) bool { return e.Target.Snapshotter == u.Snapshotter })
}

func (s *presence) release(ctx context.Context, u Unpacked) error {
	label := upstream.SnapshotRef + u.Snapshotter
	_, err := s.config.Content.Update(ctx, content.Info{
		Digest: u.ImageID,
		Labels: map[string]string{label: deletedLabel},
	}, "labels."+label)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("release the snapshot of %s in %s: %w", u.ImageID, u.Snapshotter, err)
	}
	return nil
}

// ReleaseUnpacked removes the reference from an image's configuration to its snapshot in a snapshotter, unless a key
// needs it, also a damaged one. A key that is recorded later sets the reference again.
func (s *Store) ReleaseUnpacked(ctx context.Context, id digest.Digest, snapshotter string) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = s.releaseUnpacked(ctx, Unpacked{id, snapshotter})
	return err
}

// releaseUnpacked releases a snapshot that no key needs. released is false if there is no reference to it. The caller holds
// the lock.
func (s *writer) releaseUnpacked(ctx context.Context, u Unpacked) (released bool, _ error) {
	info, err := s.config.Content.Info(ctx, u.ImageID)
	if errdefs.IsNotFound(err) || err == nil && info.Labels[upstream.SnapshotRef+u.Snapshotter] == "" || s.isKept(u) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the labels of %s: %w", u.ImageID, err)
	}
	failpoint.Reach("remove.release")
	return true, s.release(ctx, u)
}

// Unpacked is an image whose configuration references a snapshot in a snapshotter.
type Unpacked struct {
	ImageID     digest.Digest
	Snapshotter string
}

// ReleaseOrphans releases snapshots in snapshotters for which an image has no key, if it has keys for others. A removal
// that was killed after it wrote its records leaves such snapshots. Snapshots of lost keys stay, because these may
// still be repaired. ReleaseOrphans writes nothing if there are no orphans.
func (s *Store) ReleaseOrphans(ctx context.Context, all []Unpacked, lost ...imagepin.Entry) error {
	released, err := s.releaseOrphans(ctx, all, lost)
	if err != nil || !released {
		return err
	}
	return s.Collect(ctx)
}

func (s *writer) releaseOrphans(ctx context.Context, all []Unpacked, lost []imagepin.Entry) (released bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	wanted := make(map[Unpacked]bool)
	for _, e := range lost {
		wanted[Unpacked{e.ImageID, e.Target.Snapshotter}] = true
	}
	for _, u := range all {
		if wanted[u] || len(s.ByID(u.ImageID)) == 0 || s.isKept(u) || s.config.Snapshotter(u.Snapshotter) == nil {
			continue
		}
		failpoint.Reach("start.orphan")
		if err := s.release(ctx, u); err != nil {
			return false, err
		}
		released = true
	}
	return released, nil
}

// Unclaimed reports whether no key needs an image to be unpacked in a snapshotter.
func (s *reader) Unclaimed(u Unpacked) bool { return !s.isKept(u) }

// keepSnapshot adds the reference from an image's configuration to its snapshot. Unpacking adds it as its last step, so
// it may be missing while another tool unpacks the image. A removal may also have released it while the image was made
// ready again. The caller holds the mutex.
func (s *presence) keepSnapshot(ctx context.Context, e imagepin.Entry) error {
	if e.ChainID == "" {
		return nil
	}
	label := upstream.SnapshotRef + e.Target.Snapshotter
	info, err := s.config.Content.Info(ctx, e.ImageID)
	if err == nil && info.Labels[label] != e.ChainID.String() {
		_, err = s.config.Content.Update(ctx, content.Info{
			Digest: e.ImageID,
			Labels: map[string]string{label: e.ChainID.String()},
		}, "labels."+label)
	}
	if err != nil {
		return fmt.Errorf("keep the snapshot of %s in %s: %w", e.ImageID, e.Target.Snapshotter, err)
	}
	return nil
}

// Snapshot is a committed snapshot that keys need.
type Snapshot struct {
	Snapshotter string
	ChainID     digest.Digest
}

// SnapshotOf returns the snapshot that an entry needs. Its chain ID is empty for an image without layers.
func SnapshotOf(e imagepin.Entry) Snapshot { return Snapshot{e.Target.Snapshotter, e.ChainID} }

// Snapshots returns the snapshots that keys need, in a stable order.
func (s *reader) Snapshots() []Snapshot {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	all := make([]Snapshot, 0, len(s.index.bySnapshot))
	for id := range s.index.bySnapshot {
		if id.chainID != "" {
			all = append(all, Snapshot{id.snapshotter, id.chainID})
		}
	}
	slices.SortFunc(all, func(a, b Snapshot) int {
		return strings.Compare(a.Snapshotter+" "+a.ChainID.String(), b.Snapshotter+" "+b.ChainID.String())
	})
	return all
}

// ReleaseSnapshot removes the references to a snapshot from the configurations of the images that need it, also of damaged keys. Then
// only its child snapshots keep it, until the images are unpacked again.
func (s *presence) ReleaseSnapshot(ctx context.Context, sn Snapshot) error {
	s.index.mu.RLock()
	entries := s.index.bySnapshot[snapshot{sn.Snapshotter, sn.ChainID}].values()
	s.index.mu.RUnlock()
	for _, d := range s.damagedIf(func(d Damaged) bool { return SnapshotOf(d.Entry) == sn }) {
		entries = append(entries, d.Entry)
	}
	for _, e := range entries {
		if err := s.release(ctx, Unpacked{e.ImageID, sn.Snapshotter}); err != nil {
			return err
		}
	}
	return nil
}
