package pull

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// unpackDurably fetches and unpacks the missing parts of an image, and makes it durable. fetching is the context of its requests.
func (m *Maker) unpackDurably(ctx, fetching context.Context, img *chosen) (made imagepin.Entry, _ error) {
	began := time.Now()
	made, err := m.unpacker.unpack(fetching, img)
	if err != nil {
		return made, asRemoved(withCause(fetching, err))
	}
	return made, m.makeDurable(ctx, &made, began)
}

// makeDurable makes an image durable that was unpacked since a time, and sets its mark: what a record lists must be on the disk
// before. It covers the whole chain of snapshots, because another tool may have unpacked a part of it. The caller holds no lock: the
// disk may be slow, and writes what others have written.
//
// If it fails, it removes what was unpacked: the kernel reports an error once, and a later sync would succeed.
func (m *Maker) makeDurable(ctx context.Context, e *imagepin.Entry, since time.Time) (err error) {
	if e.Durable, err = m.config.Settings().sync(ctx, *e); err != nil {
		m.discard(ctx, *e, since)
	}
	return err
}

// sync calls Durable, if there is one.
func (s *Settings) sync(ctx context.Context, e imagepin.Entry) (mark string, err error) {
	if s.Durable == nil {
		return "", nil
	}
	if mark, err = s.Durable(ctx, store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: e.ChainID}); err != nil {
		return "", fmt.Errorf("the image is unpacked in %s but not durable: %w", e.Target.Snapshotter, err)
	}
	return mark, nil
}

// discard removes the snapshots of an image that were made since a time, from the top one down to the first that is older, that a key
// needs, or that another snapshot stands on.
func (m *Maker) discard(ctx context.Context, e imagepin.Entry, since time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	sn := m.config.Settings().platformOf(e.Target.Snapshotter).Snapshotter
	for name := e.ChainID.String(); sn != nil && name != ""; {
		info, err := sn.Stat(ctx, name)
		if err != nil || info.Created.Before(since) || m.config.Images.NeedsSnapshot(e.Target.Snapshotter, digest.Digest(name)) {
			return
		}
		if err := sn.Remove(ctx, name); err != nil {
			if !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err) {
				log.G(ctx).WithError(err).WithField("snapshot", name).Warn("cannot remove a snapshot that is not durable")
			}
			return
		}
		name = info.Parent
	}
}
