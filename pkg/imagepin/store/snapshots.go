package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// snapshotRefPrefix begins the label by which an image's configuration keeps
// its snapshot in a snapshotter alive, as containerd's unpacker sets it.
const snapshotRefPrefix = "containerd.io/gc.ref.snapshot."

// unpacked is an image in a snapshotter.
type unpacked struct {
	id          digest.Digest
	snapshotter string
}

// releaseSnapshots drops the reference from an image's configuration to its
// snapshot in every snapshotter that the image has lost its last key for, so
// that these snapshots are freed while another snapshotter keeps its own.
func (s *Store) releaseSnapshots(ctx context.Context, removed []imagepin.Entry) error {
	seen := make(map[unpacked]bool)
	for _, e := range removed {
		u := unpacked{e.ImageID, e.Target.Snapshotter}
		if seen[u] || s.keeps(u) {
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

// keeps tells whether a key needs an image in a snapshotter.
func (s *Store) keeps(u unpacked) bool {
	return slices.ContainsFunc(s.ByID(u.id), func(e imagepin.Entry) bool { return e.Target.Snapshotter == u.snapshotter })
}

func (s *Store) release(ctx context.Context, u unpacked) error {
	label := snapshotRefPrefix + u.snapshotter
	_, err := s.Content.Update(ctx, content.Info{
		Digest: u.id,
		Labels: map[string]string{label: deletedLabel},
	}, "labels."+label)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("release the snapshot of %s in %s: %w", u.id, u.snapshotter, err)
	}
	return nil
}

// LetGo drops the reference from an image's configuration to its snapshot in a
// snapshotter, unless a key needs it. A key that is recorded later has it set again.
func (s *Store) LetGo(ctx context.Context, id digest.Digest, snapshotter string) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	u := unpacked{id, snapshotter}
	info, err := s.Content.Info(ctx, id)
	if errdefs.IsNotFound(err) || err == nil && info.Labels[snapshotRefPrefix+snapshotter] == "" || s.keeps(u) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the labels of %s: %w", id, err)
	}
	return s.release(ctx, u)
}

// ReleaseOrphans lets go of the snapshots of images that have keys, but none
// for the snapshotter: what a removal leaves that was killed after its records
// were written. Those of lost keys stay: they may be wanted yet. It writes
// nothing where there are none.
func (s *Store) ReleaseOrphans(ctx context.Context, have *Inventory, lost ...Loss) error {
	released, err := s.releaseOrphans(ctx, have, lost)
	if err != nil || !released {
		return err
	}
	return s.Collect(ctx)
}

func (s *Store) releaseOrphans(ctx context.Context, have *Inventory, lost []Loss) (released bool, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	wanted := make(map[unpacked]bool)
	for _, l := range lost {
		wanted[unpacked{l.Entry.ImageID, l.Entry.Target.Snapshotter}] = true
	}
	var orphans []unpacked
	for blob, snapshotters := range have.blobs {
		if len(snapshotters) == 0 || len(s.ByID(blob)) == 0 {
			continue
		}
		for _, name := range snapshotters {
			if u := (unpacked{blob, name}); !wanted[u] && !s.keeps(u) && s.Snapshotter(name) != nil {
				orphans = append(orphans, u)
			}
		}
	}
	slices.SortFunc(orphans, func(a, b unpacked) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.snapshotter, b.snapshotter))
	})
	for _, u := range orphans {
		failpoint.Reach("start.orphan")
		if err := s.release(ctx, u); err != nil {
			return false, err
		}
	}
	return len(orphans) > 0, nil
}

// keepSnapshot makes an image's configuration keep its snapshot alive, as
// unpacking it does last: another tool may be between the two, and a removal may
// have let go of it while it was made ready again. The caller holds the lock.
func (s *Store) keepSnapshot(ctx context.Context, e imagepin.Entry) error {
	if e.ChainID == "" {
		return nil
	}
	label := snapshotRefPrefix + e.Target.Snapshotter
	info, err := s.Content.Info(ctx, e.ImageID)
	if err == nil && info.Labels[label] != e.ChainID.String() {
		_, err = s.Content.Update(ctx, content.Info{
			Digest: e.ImageID,
			Labels: map[string]string{label: e.ChainID.String()},
		}, "labels."+label)
	}
	if err != nil {
		return fmt.Errorf("keep the snapshot of %s in %s: %w", e.ImageID, e.Target.Snapshotter, err)
	}
	return nil
}
