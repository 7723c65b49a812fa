package reconcile

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/layerfiles"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// fresh makes the images durable that other tools pull while the node runs. It compares them with their layers before: a tool can
// unpack an image on layers that lost their files in a power cut.
type fresh struct {
	config  *Config
	damaged func(context.Context, ...health.Loss)

	mu    sync.Mutex
	added []imagepin.Entry
	more  chan struct{} // has an element if there are new ones
}

func newFresh(c *Config, damaged func(context.Context, ...health.Loss)) *fresh {
	return &fresh{config: c, damaged: damaged, more: make(chan struct{}, 1)}
}

// freshDelay is how long to wait for more images.
const freshDelay = 2 * time.Second

// add adds the keys of an image.
func (f *fresh) add(entries ...imagepin.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.added = append(f.added, entries...)
	select {
	case f.more <- struct{}{}:
	default:
	}
}

// run makes images durable until ctx ends.
func (f *fresh) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.more:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(freshDelay):
		}
		f.makeDurable(ctx)
	}
}

// makeDurable makes the images durable that were added, each snapshot once.
func (f *fresh) makeDurable(ctx context.Context) {
	f.mu.Lock()
	all := f.added
	f.added = nil
	f.mu.Unlock()
	synced := make(map[store.Snapshot]error)
	var durable []imagepin.Entry
	for _, e := range all {
		sn := snapshotOfEntry(e)
		err, done := synced[sn]
		if !done {
			err = f.config.Boot.Sync(ctx, e)
			synced[sn] = err
			if err != nil && !errdefs.IsNotImplemented(err) && ctx.Err() == nil {
				logOf(ctx, e).WithError(err).Warn("cannot make an image of another tool durable, it is compared after the next boot")
			}
		}
		if err == nil && f.isIntact(ctx, e) {
			e.Durable = f.config.Boot.ID()
			durable = append(durable, e)
		}
	}
	if len(durable) == 0 {
		return
	}
	if err := f.config.Store.MarkDurable(ctx, durable...); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Warn("cannot record that images are durable, they are compared after the next boot")
	}
}

// isIntact compares an image with its layers. It queues the repair of one that differs. A removal of the image waits: it returns when
// the snapshots are gone, and the comparison has views of them.
func (f *fresh) isIntact(ctx context.Context, e imagepin.Entry) bool {
	unlock, err := f.config.Locks.ForUse(ctx, e.Ref)
	if err != nil {
		return false
	}
	defer unlock()
	if now, ok := f.config.Store.Get(e.Key); !ok || now.ChainID != e.ChainID {
		return false // it was removed
	}
	found, err := f.config.Checker.CompareFiles(ctx, e, false)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			logOf(ctx, e).WithError(err).Warn("cannot compare the files of an image of another tool")
		}
		return false
	case found.State == layerfiles.Damaged:
		f.damaged(ctx, health.Loss{Entry: e, Reason: found.Why, DamagedFiles: true})
		return false
	}
	return found.State == layerfiles.Intact
}
