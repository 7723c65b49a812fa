package replace

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/family"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// maxNamed is how many containers an error names.
const maxNamed = 5

// checkUnused fails with SnapshotInUse if a container or a sandbox runs on the damaged snapshots, or something mounts them.
func (j *job) checkUnused(ctx context.Context) error {
	var by []string
	if j.config.Users != nil {
		users, err := j.config.Users(ctx)
		if err != nil {
			return err
		}
		all, err := family.Of(ctx, j.snapshotter)
		if err != nil {
			return err
		}
		for _, u := range users {
			// The snapshot of a container on a native one is a copy, which it goes on using.
			if all.StandsOn(u.Snapshot, j.names()...) && !j.damaged.copied {
				by = append(by, u.Name)
			}
		}
	}
	slices.Sort(by)
	if len(by) == 0 {
		points, err := j.mountPoints(ctx)
		if err != nil {
			return err
		}
		for _, p := range points {
			by = append(by, "mount point "+p)
		}
	}
	if len(by) > 0 {
		return InUse(j.entry, by...)
	}
	return j.checkNotCopied(ctx)
}

// mountPoints returns where the damaged directories are mounted, and still are after a moment.
func (j *job) mountPoints(ctx context.Context) ([]string, error) {
	end := time.Now().Add(j.settle)
	for {
		points, err := mountPoints(j.damaged.dirs)
		if err != nil || len(points) == 0 || !time.Now().Before(end) {
			return points, err
		}
		if err := pause.Wait(ctx, settlePoll); err != nil {
			return nil, err
		}
	}
}

// settlePoll is how often mounts are listed while one is waited for.
const settlePoll = 20 * time.Millisecond

// checkNotCopied fails with ErrUnavailable if a layer is being unpacked on a copy of the damaged snapshots. Something else may
// be about to copy them.
func (j *job) checkNotCopied(ctx context.Context) error {
	if !j.damaged.copied {
		return nil
	}
	all, err := family.Of(ctx, j.snapshotter)
	if err != nil {
		return err
	}
	for name := range all {
		if strings.HasPrefix(name, snapshots.UnpackKeyPrefix) && all.StandsOn(name, j.names()...) {
			return fmt.Errorf("layer %s is being unpacked on the damaged snapshot: %w", name, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// InUse returns the error SnapshotInUse of an entry. by are descriptions of what uses its snapshot, of which it has the first ones.
func InUse(e imagepin.Entry, by ...string) error {
	var named []string
	for _, name := range by[:min(len(by), maxNamed)] {
		named = append(named, imagepin.Bound(name, maxName))
	}
	text := strings.Join(named, ", ")
	if more := len(by) - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return &imagepin.Error{
		Reason: imagepin.SnapshotInUse, Ref: e.Ref, Target: e.Target.String(), Class: errdefs.ErrFailedPrecondition,
		Message: "files of its snapshot are damaged, and it is in use by " + text,
		Hint:    "Delete the pods, or drain the node. The node then repairs the image by itself.",
	}
}

// maxName bounds the name of a container in an error, in bytes.
const maxName = 160

// checkWritable fails with SnapshotNotReplaceable if this process may not write where the damaged directories are.
func (j *job) checkWritable() error {
	for _, dir := range j.damaged.dirs {
		if err := writable(filepath.Dir(dir)); err != nil {
			e := j.notReplaceable(fmt.Sprintf("imagepin cannot write to %s: %v", filepath.Dir(dir), err))
			e.Hint = "For imagepin serve, add a drop-in to imagepin.service with ReadWritePaths= and the directory of containerd. Or run " +
				"imagepin check --repair --remove-exited: it removes the exited containers that stand on the snapshot, and unpacks it again."
			return e
		}
	}
	return nil
}

func (j *job) notReplaceable(why string) *imagepin.Error {
	return &imagepin.Error{
		Reason: imagepin.SnapshotNotReplaceable, Ref: j.entry.Ref, Target: j.entry.Target.String(), Class: errdefs.ErrNotImplemented,
		Message: "files of its snapshot are damaged, and " + why,
		Hint:    "Run imagepin check --repair --remove-exited: it removes the exited containers that stand on the snapshot, and unpacks it again.",
	}
}

// references returns the references of the keys whose snapshots are damaged ones or stand on these, by tag and by digest, as
// calls that use an image lock them.
func (j *job) references(ctx context.Context) ([]string, error) {
	all, err := family.Of(ctx, j.snapshotter)
	if err != nil {
		return nil, err
	}
	refs := []string{j.entry.Ref}
	for _, e := range append(j.config.Entries(), j.entry) {
		if e.Target.Snapshotter != j.entry.Target.Snapshotter || !all.StandsOn(e.ChainID.String(), j.names()...) {
			continue
		}
		refs = append(refs, e.Ref)
		if ref, err := reference.ParseNamed(e.Ref); err == nil {
			if name, err := store.RecordName(ref, e.Root.Digest); err == nil {
				refs = append(refs, name)
			}
		}
	}
	slices.Sort(refs)
	return slices.Compact(refs), nil
}
