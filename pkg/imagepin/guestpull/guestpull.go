// Package guestpull keeps layers off a node whose guests pull images themselves.
//
// containerd's CRI creates a container on the snapshot of its image, and unpacks the image if there is none. So an image for guests gets
// a snapshot without files for each layer, in the way in which remote snapshotters leave out layers: no layer is fetched.
package guestpull

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Label is on each snapshot whose files are in guests only. It has the value "true".
const Label = imagepin.LabelPrefix + "guest-pull"

// IsEmpty reports whether the files of a snapshot are in guests only.
func IsEmpty(i snapshots.Info) bool { return i.Labels[Label] != "" }

// AnyEmpty is [IsEmpty] for a committed snapshot and those below it. It fails with ErrNotFound if one of them does not exist.
func AnyEmpty(ctx context.Context, sn snapshots.Snapshotter, name string) (bool, error) {
	for name != "" {
		info, err := sn.Stat(ctx, name)
		if err != nil {
			return false, fmt.Errorf("look at snapshot %s: %w", name, err)
		}
		if IsEmpty(info) {
			return true, nil
		}
		name = info.Parent
	}
	return false, nil
}

// WithFiles returns a context with which layers are unpacked in all snapshotters. From then on, they are also unpacked without it: another
// image may have them too, and its repair must not commit them without files again.
func WithFiles(ctx context.Context) context.Context { return context.WithValue(ctx, withFiles{}, true) }

type withFiles struct{}

// Snapshotter returns a snapshotter for images of guests that pull themselves. If a layer is to be unpacked in it, it commits a snapshot
// without the layer's files, with the [Label], and answers ErrAlreadyExists. So does a remote snapshotter that has the layer; see
// containerd's docs/remote-snapshotter.md.
func Snapshotter(sn snapshots.Snapshotter) snapshots.Snapshotter {
	return empty{sn, new(sync.Map)}
}

type empty struct {
	snapshots.Snapshotter
	withFiles *sync.Map // the names of snapshots that were asked for with [WithFiles]
}

// getsFiles reports whether a layer is unpacked.
func (e empty) getsFiles(ctx context.Context, name string) bool {
	if ctx.Value(withFiles{}) != nil {
		e.withFiles.Store(name, true)
	}
	_, ok := e.withFiles.Load(name)
	return ok
}

// Stat implements snapshots.Snapshotter. The unpacker calls it before Prepare.
func (e empty) Stat(ctx context.Context, name string) (snapshots.Info, error) {
	e.getsFiles(ctx, name)
	return e.Snapshotter.Stat(ctx, name)
}

// Prepare implements snapshots.Snapshotter.
func (e empty) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	var asked snapshots.Info
	for _, opt := range opts {
		if err := opt(&asked); err != nil {
			return nil, err
		}
	}
	name := asked.Labels[upstream.LayerLabel]
	if name == "" || e.getsFiles(ctx, name) {
		return e.Snapshotter.Prepare(ctx, key, parent, opts...)
	}
	opts = append(opts[:len(opts):len(opts)], snapshots.WithLabels(map[string]string{Label: "true"}))
	if _, err := e.Snapshotter.Prepare(ctx, key, parent, opts...); err != nil {
		return nil, err
	}
	failpoint.Reach("guestpull.prepared")
	if err := e.Snapshotter.Commit(ctx, name, key, opts...); err != nil { // ErrAlreadyExists if another pull has committed it
		e.abort(ctx, key)
		return nil, err
	}
	return nil, errdefs.ErrAlreadyExists
}

// abortTimeout limits the removal of a snapshot that was not committed.
const abortTimeout = 10 * time.Second

// abort removes a snapshot that was not committed. If that fails, it is garbage once the lease of the pull ends.
func (e empty) abort(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	if err := e.Remove(ctx, key); err != nil {
		log.G(ctx).WithError(err).WithField("snapshot", key).Warn("cannot remove a snapshot that was not committed")
	}
}
