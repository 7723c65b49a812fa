package reconcile

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// healers is how many keys are healed at once.
const healers = 2

// healAgain is how long to wait before what could not be healed is tried again.
const healAgain = 10 * time.Second

// heal sees to the keys that were recorded but not ready when the index was
// built. It goes on behind the service: a key is reported as present when it is.
//
//   - Where only the snapshot is gone and the layers are here, it is unpacked
//     again.
//   - Where that cannot be told or done now (a snapshotter that does not answer,
//     a disk that is full), it is tried again until it can.
//   - Everything else is dropped: what is gone is fetched, by digest, when it is
//     next asked for. So is a key whose target no runtime handler has any more.
func (r *Reconciler) heal(ctx context.Context, found *store.Loaded) {
	waiting := r.healAll(ctx, found.Lost)
	if err := r.Store.ReleaseOrphans(ctx, found.Have); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Error("cannot release snapshots that no key needs")
	}
	for len(waiting) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(healAgain):
		}
		have, err := r.Store.Inventory(ctx)
		if err != nil {
			continue
		}
		var still []store.Loss
		for _, w := range waiting {
			loss, lost := r.Store.Recheck(w.Entry, have)
			if !lost {
				loss = store.Loss{Entry: w.Entry, Why: w.Why, Mendable: true} // its snapshot is there after all
			}
			still = append(still, loss)
		}
		waiting = r.healAll(ctx, still)
	}
}

// healAll heals what it can, and gives what has to be tried again.
func (r *Reconciler) healAll(ctx context.Context, losses []store.Loss) []store.Loss {
	var (
		g     errgroup.Group
		mu    sync.Mutex
		again []store.Loss
	)
	g.SetLimit(healers)
	for _, loss := range losses {
		g.Go(func() error {
			if loss.Wait || !r.healOne(ctx, loss) {
				mu.Lock()
				defer mu.Unlock()
				again = append(again, loss)
			}
			return nil
		})
	}
	_ = g.Wait() // none fails: what has to be tried again is in the list
	return again
}

// healOne sees to one key. It is not done where the cause may go away.
func (r *Reconciler) healOne(ctx context.Context, loss store.Loss) (done bool) {
	e := loss.Entry
	entry := log.G(ctx).WithField("key", e.Key.String()).WithField("record", e.Record)
	defer func() {
		if p := recover(); p != nil {
			entry.Errorf("panic while healing: %v\n%s", p, debug.Stack())
			done = true
		}
	}()
	var err error
	if loss.Mendable {
		if err = r.Puller.Unpack(ctx, e); err == nil {
			failpoint.Reach("heal.unpacked")
			_, err = r.Store.Put(ctx, "", e)
		}
		if err == nil {
			failpoint.Reach("heal.recorded")
			entry.Infof("a key is ready again: %s, and it was unpacked from what is here", loss.Why)
			return true
		}
		if !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			if ctx.Err() == nil {
				entry.WithError(err).Warnf("a key is not ready: %s; it is tried again in %s", loss.Why, healAgain)
			}
			return false
		}
	}
	entry.Warnf("a key is dropped: %s, and cannot be made ready from what is here", loss.Why)
	failpoint.Reach("heal.drop")
	if err := r.Store.Drop(ctx, e); err != nil && ctx.Err() == nil {
		entry.WithError(err).Warnf("cannot drop a key; it is tried again in %s", healAgain)
		return false
	}
	failpoint.Reach("heal.dropped")
	return true
}
