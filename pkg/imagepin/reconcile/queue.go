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
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

const (
	// repairers is how many keys of a snapshotter are repaired concurrently.
	repairers = 2
	// repairFirst and repairLast are the first and the longest delay before a repair is retried. The delay doubles with
	// each retry.
	repairFirst = 250 * time.Millisecond
	repairLast  = 10 * time.Second
	// repairLastCorrupt is the longest delay if all keys that are retried have corrupt content: each retry unpacks it.
	repairLastCorrupt = 5 * time.Minute
)

// repairs repairs keys that were recorded but are not ready. It runs in the background. A key is only reported as
// present when it is ready.
//
//   - If only the snapshot is missing and the layers are on the node, the key is unpacked again.
//   - If the state is unknown or the repair fails for now (a snapshotter does not respond, a disk is full), it is
//     retried.
//   - If content is missing, it is fetched by digest, see [repairs.fetchOne].
//   - All other keys are dropped. This includes keys for a target without a runtime handler.
//
// Each snapshotter has its own queue, so one that hangs does not block repairs in another. Fetches have a queue for each
// snapshotter and registry.
type repairs struct {
	repairer
	mu     sync.Mutex
	queues map[queueName]*queue
	owned  sync.WaitGroup
}

// queueName identifies a queue. registry is empty for repairs from local content.
type queueName struct{ snapshotter, registry string }

// repairFunc repairs or drops one key. It returns the longest delay before the repair is retried, or zero if it is done.
type repairFunc func(context.Context, queued) (retry time.Duration)

// queued is a lost key in a queue.
type queued struct {
	health.Loss
	since time.Time
}

// queue has the keys to repair in one snapshotter.
type queue struct {
	repairs *repairs
	repair  repairFunc
	losses  []queued      // guarded by repairs.mu
	pending int           // losses that are not repaired or dropped yet, guarded by repairs.mu
	more    chan struct{} // has one element if there are new losses
}

func newRepairs(r repairer) *repairs {
	return &repairs{repairer: r, queues: make(map[queueName]*queue)}
}

// wait waits until all queues have ended. They end with the context of add.
func (p *repairs) wait() { p.owned.Wait() }

// add queues losses for repair until ctx ends.
func (p *repairs) add(ctx context.Context, losses ...health.Loss) {
	for _, l := range losses {
		p.addTo(ctx, queueName{snapshotter: l.Entry.Target.Snapshotter}, l, p.repairOne)
	}
}

// addTo adds a loss to a queue, which runs repair until ctx ends.
func (p *repairs) addTo(ctx context.Context, name queueName, l health.Loss, repair repairFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queues[name]
	if q == nil {
		q = &queue{repairs: p, repair: repair, more: make(chan struct{}, 1)}
		p.queues[name] = q
		p.owned.Go(func() {
			q.run(ctx)
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.queues, name)
		})
	}
	q.losses = append(q.losses, queued{l, time.Now()})
	q.pending++
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// pending returns the number of keys that are not repaired or dropped yet.
func (p *repairs) pending() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.queues {
		n += q.pending
	}
	return n
}

// done notes that n losses are repaired or dropped.
func (q *queue) done(n int) {
	q.repairs.mu.Lock()
	defer q.repairs.mu.Unlock()
	q.pending -= n
}

func (q *queue) take() []queued {
	q.repairs.mu.Lock()
	defer q.repairs.mu.Unlock()
	losses := q.losses
	q.losses = nil
	return losses
}

func (q *queue) run(ctx context.Context) {
	var (
		waiting []queued
		again   <-chan time.Time
		pause   = repairFirst
		longest time.Duration
	)
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.more:
			pause = repairFirst
		case <-again:
			waiting = q.repairs.recheck(ctx, waiting)
			pause *= 2
		}
		again = nil
		all := append(waiting, q.take()...)
		waiting, longest = repairAll(ctx, all, q.repair)
		q.done(len(all) - len(waiting))
		if len(waiting) > 0 {
			pause = min(pause, longest)
			again = time.After(pause)
		}
	}
}

// recheck updates the losses that have to wait.
func (p *repairs) recheck(ctx context.Context, waiting []queued) []queued {
	have, err := p.config.Checker.Inventory(ctx)
	if err != nil {
		return waiting
	}
	for i, w := range waiting {
		loss, lost := p.config.Checker.Lost(w.Entry, have)
		if !lost {
			loss = health.Loss{Entry: w.Entry, Reason: w.Reason, Unpackable: true} // its snapshot exists now
		}
		loss.Record, loss.Moved = w.Record, w.Moved
		waiting[i].Loss = loss
	}
	return waiting
}

// repairAll repairs losses. It returns those to retry, and the longest delay before that.
func repairAll(ctx context.Context, losses []queued, repair repairFunc) (again []queued, longest time.Duration) {
	var (
		g  errgroup.Group
		mu sync.Mutex
	)
	longest = repairLastCorrupt
	g.SetLimit(repairers)
	for _, loss := range losses {
		g.Go(func() error {
			retry := repairLast
			if !loss.Unknown {
				retry = repair(ctx, loss)
			}
			if retry > 0 {
				mu.Lock()
				defer mu.Unlock()
				again, longest = append(again, loss), min(longest, retry)
			}
			return nil
		})
	}
	_ = g.Wait() // no function fails, again has the losses to retry
	return again, longest
}

// retryAfter returns the longest delay before a repair that failed with err is retried.
func retryAfter(err error) time.Duration {
	if pull.IsCorrupt(err) && !errdefs.IsUnavailable(err) {
		return repairLastCorrupt
	}
	return repairLast
}

// logOf returns a log entry about a key.
func logOf(ctx context.Context, e imagepin.Entry) *log.Entry {
	return log.G(ctx).WithField("key", e.Key.String()).WithField("record", e.Record)
}

// afterPanic logs a panic of a repair. The repair is not retried.
func afterPanic(entry *log.Entry, retry *time.Duration) {
	if p := recover(); p != nil {
		entry.Errorf("panic while repairing: %v\n%s", p, debug.Stack())
		*retry = 0
	}
}

// repairOne repairs one key from local content. If that is not sufficient, it queues its fetch or drops it. It is a
// [repairFunc].
func (p *repairs) repairOne(ctx context.Context, loss queued) (retry time.Duration) {
	e := loss.Entry
	entry := logOf(ctx, e)
	defer afterPanic(entry, &retry)
	if loss.Unpackable {
		restored, err := p.unpack(ctx, loss.Loss)
		if err == nil {
			if restored {
				entry.Infof("repaired key from local content: %s", loss.Reason)
			}
			return 0
		}
		if !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			if ctx.Err() == nil {
				entry.WithError(imagepin.BoundError(err, imagepin.MaxLogText)).Warnf("cannot repair key yet, retrying: %s", loss.Reason)
			}
			return retryAfter(err)
		}
	}
	if moved, ok := p.forDefaultTarget(e); ok {
		_, err := p.unpack(ctx, moved)
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			if ctx.Err() == nil {
				entry.WithError(imagepin.BoundError(err, imagepin.MaxLogText)).
					Warn("cannot unpack image for the default runtime handler yet, retrying")
			}
			return retryAfter(err)
		}
		if err != nil { // its layers are not on the node
			kept, err := p.keep(ctx, e)
			if err != nil {
				if ctx.Err() == nil {
					entry.WithError(err).Warnf("cannot keep image in %s yet, retrying", e.Target.Snapshotter)
				}
				return repairLast
			}
			if kept {
				return 0
			}
		}
	}
	if loss.Record != "" || loss.Moved {
		return 0 // an image of another tool that cannot be adopted without its layers, or one that is fetched when it is used
	}
	if name, ok := p.fetchQueue(e); ok {
		p.addTo(ctx, name, loss.Loss, p.fetchOne)
		return 0
	}
	entry.Warnf("dropping key that cannot be repaired: %s", loss.Reason)
	return p.dropLost(ctx, e)
}

// dropLost drops a lost key, unless a call has made it ready. It returns when that is retried, as a [repairFunc].
func (p *repairs) dropLost(ctx context.Context, e imagepin.Entry) (retry time.Duration) {
	failpoint.Reach("repair.drop")
	if err := p.config.Store.Drop(ctx, e); err != nil {
		if ctx.Err() == nil {
			logOf(ctx, e).WithError(err).Warn("cannot drop key yet, retrying")
		}
		return repairLast
	}
	failpoint.Reach("repair.dropped")
	return 0
}

// forDefaultTarget returns the loss of the same key for the default target, if no runtime handler has the key's own
// target any more. If the default snapshotter changed, the image is unpacked there before its old content is released.
func (p *repairs) forDefaultTarget(e imagepin.Entry) (health.Loss, bool) {
	to := p.config.Runtimes().Default().Target
	if _, ok := p.config.Runtimes().ForTarget(e.Target); ok || e.Target.Platform != to.Platform {
		return health.Loss{}, false
	}
	e.Target = to
	_, ready := p.config.Store.Get(e.Key)
	return health.Loss{Entry: e, Reason: "the default snapshotter changed", Unpackable: true}, !ready
}
