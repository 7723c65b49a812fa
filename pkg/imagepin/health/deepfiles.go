package health

import (
	"context"
	"slices"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/layerfiles"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// sizes returns how many bytes each snapshot adds to those before it, with those below it.
func (c *Checker) sizes(ctx context.Context, all []store.Snapshot) (map[store.Snapshot]int64, error) {
	sizes, counted := make(map[store.Snapshot]int64), make(map[store.Snapshot]bool)
	for _, sn := range all {
		snapshotter := c.config.Snapshotter(sn.Snapshotter)
		for name := sn.ChainID.String(); name != ""; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			level := store.Snapshot{Snapshotter: sn.Snapshotter, ChainID: digest.Digest(name)}
			if counted[level] {
				break
			}
			counted[level] = true
			used, err := snapshotter.Usage(ctx, name)
			if err != nil {
				break // the snapshot is removed, or its snapshotter does not respond, which the check reports
			}
			sizes[sn] += used.Size
			info, err := snapshotter.Stat(ctx, name)
			if err != nil {
				break
			}
			name = info.Parent
		}
	}
	return sizes, nil
}

// checkSnapshots checks the directories of snapshots, and returns the problem of each snapshot without one. It compares the files of
// the others.
func (r *deepRun) checkSnapshots(ctx context.Context, all []store.Snapshot, sizes map[store.Snapshot]int64) (missing map[store.Snapshot]string, compared map[store.Snapshot]Comparison, _ error) {
	missing, compared = make(map[store.Snapshot]string), make(map[store.Snapshot]Comparison)
	images := r.checker.bySnapshot()
	err := lease.With(ctx, r.checker.config.Leases, lease.Use, func(ctx context.Context) error {
		var end int64 // of the bytes of one snapshot
		comparing := r.checker.comparing(true, func(n int64) error {
			r.done.Bytes = min(r.done.Bytes+n, end)
			r.report()
			return r.wait(ctx, n)
		})
		for _, sn := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			end = r.done.Bytes + sizes[sn]
			why, err := r.checker.missingDirectory(ctx, sn)
			if err != nil && ctx.Err() == nil {
				log.G(ctx).WithError(err).Warn("cannot check snapshot")
			}
			if why != "" {
				missing[sn] = why
			} else if compared[sn], err = comparing.any(ctx, images[sn]); err != nil {
				return err
			}
			r.done.Snapshots++
			r.done.Bytes = end
			r.report()
		}
		return nil
	})
	return missing, compared, err
}

// bySnapshot returns the images of each snapshot. Several manifests can have one, with layers that are compressed differently.
func (c *Checker) bySnapshot() map[store.Snapshot][]imagepin.Entry {
	all := make(map[store.Snapshot][]imagepin.Entry)
	for _, img := range c.config.Images.Images() {
		for _, e := range img.Entries {
			sn := store.SnapshotOf(e)
			if !slices.ContainsFunc(all[sn], func(other imagepin.Entry) bool { return other.Manifest == e.Manifest && other.ImageID == e.ImageID }) {
				all[sn] = append(all[sn], e)
			}
		}
	}
	return all
}

// any compares a snapshot with the first of its images whose layers are on the node. It fails only if ctx is done.
func (c *comparing) any(ctx context.Context, images []imagepin.Entry) (found Comparison, _ error) {
	found.Why = "its image was removed"
	for _, e := range images {
		one, err := c.entry(ctx, e)
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		if err != nil {
			one = Comparison{Why: err.Error()}
		}
		if found = one; found.State != layerfiles.Unverified {
			return found, nil
		}
		for level, result := range c.done {
			if result.State == layerfiles.Unverified {
				delete(c.done, level)
			}
		}
	}
	return found, nil
}

// addUnverified adds the keys whose files could not be compared to a report, unless the key has another problem.
func (c *Checker) addUnverified(compared map[store.Snapshot]Comparison, r *Report) {
	lost := make(map[imagepin.Key]bool)
	for _, f := range r.Findings {
		lost[f.Loss.Entry.Key] = lost[f.Loss.Entry.Key] || f.Kind == LostKey
	}
	for _, img := range c.config.Images.Images() {
		for _, e := range img.Entries {
			found, ok := compared[store.SnapshotOf(e)]
			if ok && found.State == layerfiles.Unverified && !lost[e.Key] {
				r.add(Unverified, e, "its files could not be compared: "+found.Why)
			}
		}
	}
}
