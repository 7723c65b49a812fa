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
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
)

const (
	// healers is how many keys of a snapshotter are healed at once.
	repairers = 2
	// healFirst and healLast bound how long to wait before what could not be
	// healed is tried again: twice as long each time.
	repairFirst = 250 * time.Millisecond
	repairLast  = 10 * time.Second
)

// healing sees to the keys that were recorded but are not ready. It goes on
// behind the service: a key is reported as present when it is.
//
//   - Where only the snapshot is gone and the layers are here, it is unpacked
//     again.
//   - Where that cannot be told or done now (a snapshotter that does not answer,
//     a disk that is full), it is tried again until it can.
//   - Everything else is dropped: what is gone is fetched, by digest, when it is
//     next asked for. So is a key whose target no runtime handler has any more.
//
// Each snapshotter is seen to by itself: one that hangs does not keep the keys
// of another from being healed.
type repairs struct {
	r      *Reconciler
	mu     sync.Mutex
	queues map[string]*queue
	owned  sync.WaitGroup
}

// queue is what there is to heal in one snapshotter.
type queue struct {
	repairs *repairs
	losses  []health.Loss // guarded by the healing's lock
	more    chan struct{} // has one element where there are new losses
}

func newRepairs(r *Reconciler) *repairs { return &repairs{r: r, queues: make(map[string]*queue)} }

// wait waits until what add started has ended, which the end of its context
// brings about.
func (h *repairs) wait() { h.owned.Wait() }

// add has losses healed until ctx ends.
func (h *repairs) add(ctx context.Context, losses ...health.Loss) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range losses {
		name := l.Entry.Target.Snapshotter
		q := h.queues[name]
		if q == nil {
			q = &queue{repairs: h, more: make(chan struct{}, 1)}
			h.queues[name] = q
			h.owned.Go(func() { q.run(ctx) })
		}
		q.losses = append(q.losses, l)
		select {
		case q.more <- struct{}{}:
		default:
		}
	}
}

func (q *queue) take() []health.Loss {
	q.repairs.mu.Lock()
	defer q.repairs.mu.Unlock()
	losses := q.losses
	q.losses = nil
	return losses
}

func (q *queue) run(ctx context.Context) {
	var (
		waiting []health.Loss
		again   <-chan time.Time
		pause   = repairFirst
	)
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.more:
			pause = repairFirst
		case <-again:
			waiting = q.repairs.r.recheck(ctx, waiting)
			pause = min(2*pause, repairLast)
		}
		again = nil
		waiting = q.repairs.r.repairAll(ctx, append(waiting, q.take()...))
		if len(waiting) > 0 {
			again = time.After(pause)
		}
	}
}

// recheck looks whether what had to wait still has to.
func (r *Reconciler) recheck(ctx context.Context, waiting []health.Loss) []health.Loss {
	have, err := r.Checker.Inventory(ctx)
	if err != nil {
		return waiting
	}
	for i, w := range waiting {
		loss, lost := r.Checker.Lost(w.Entry, have)
		if !lost {
			loss = health.Loss{Entry: w.Entry, Why: w.Why, Unpackable: true} // its snapshot is there after all
		}
		loss.Record = w.Record
		waiting[i] = loss
	}
	return waiting
}

// healAll heals what it can, and gives what has to be tried again.
func (r *Reconciler) repairAll(ctx context.Context, losses []health.Loss) []health.Loss {
	var (
		g     errgroup.Group
		mu    sync.Mutex
		again []health.Loss
	)
	g.SetLimit(repairers)
	for _, loss := range losses {
		g.Go(func() error {
			if loss.Wait || !r.repairOne(ctx, loss) {
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
func (r *Reconciler) repairOne(ctx context.Context, loss health.Loss) (done bool) {
	e := loss.Entry
	entry := log.G(ctx).WithField("key", e.Key.String()).WithField("record", e.Record)
	defer func() {
		if p := recover(); p != nil {
			entry.Errorf("panic while healing: %v\n%s", p, debug.Stack())
			done = true
		}
	}()
	if loss.Unpackable {
		restored, err := r.unpack(ctx, loss)
		if err == nil {
			if restored {
				entry.Infof("a key is ready again: %s, and it was unpacked from what is here", loss.Why)
			}
			return true
		}
		if !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			if ctx.Err() == nil {
				entry.WithError(err).Warnf("a key is not ready: %s; it is tried again", loss.Why)
			}
			return false
		}
	}
	if moved, ok := r.toDefault(e); ok {
		_, err := r.unpack(ctx, moved)
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			if ctx.Err() == nil {
				entry.WithError(err).Warn("an image cannot be unpacked where the default runtime handler wants it now; it is tried again")
			}
			return false
		}
	}
	if loss.Record != "" {
		return true // another tool's image, which is none of ours without its layers
	}
	entry.Warnf("a key is dropped: %s, and cannot be made ready from what is here", loss.Why)
	failpoint.Reach("repair.drop")
	if err := r.Store.Drop(ctx, e); err != nil {
		if ctx.Err() == nil {
			entry.WithError(err).Warn("cannot drop a key; it is tried again")
		}
		return false
	}
	failpoint.Reach("repair.dropped")
	return true
}

// toDefault gives what becomes of a key whose target no runtime handler has any
// more: where the node's images go into another snapshotter now, it goes there
// too, before what it held is let go of.
func (r *Reconciler) toDefault(e imagepin.Entry) (health.Loss, bool) {
	to := r.Runtimes().Default().Target
	if _, ok := r.Runtimes().ForTarget(e.Target); ok || e.Target.Platform != to.Platform {
		return health.Loss{}, false
	}
	e.Target = to
	_, ready := r.Store.Get(e.Key)
	return health.Loss{Entry: e, Why: "the default snapshotter is another one", Unpackable: true}, !ready
}

// unpack makes a key ready from what is here. It is not restored where nobody
// wants it any more.
func (r *Reconciler) unpack(ctx context.Context, loss health.Loss) (restored bool, _ error) {
	witness := loss.Record
	if witness == "" {
		witness = loss.Entry.Record
	}
	err := r.Maker.Unpack(ctx, loss.Entry, func(ctx context.Context) (err error) {
		failpoint.Reach("repair.unpacked")
		restored, err = r.Store.PutIf(ctx, loss.Entry, witness)
		failpoint.Reach("repair.recorded")
		return err
	})
	return restored, err
}
