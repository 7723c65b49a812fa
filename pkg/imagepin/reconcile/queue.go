package reconcile

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
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
	// repairLastInUse is the longest delay while a container stands on a damaged snapshot.
	repairLastInUse = time.Minute
	// repairLastFetch is the longest delay while a registry is unavailable for longer than fetchFor.
	repairLastFetch = 5 * time.Minute
	// repairLastRefused is the longest delay after an answer that does not change by itself: access is denied, or a
	// verifier rejects the image.
	repairLastRefused = time.Hour
)

// repairs repairs keys that were recorded but are not ready. It runs in the background. A key is only reported as
// present when it is ready.
//
//   - If only the snapshot is missing and the layers are on the node, the key is unpacked again.
//   - If the state is unknown or the repair fails for now (a snapshotter does not respond, a disk is full), it is
//     retried.
//   - If content is missing, it is fetched by digest, see [repairs.fetchOne].
//   - A key without a runtime handler is not repaired: a start looks at it again.
//   - A key is dropped only if its registry no longer has the image, if its image is ready for another target instead, or if
//     it is not recorded any more.
//
// Each snapshotter has its own queue, so one that hangs does not block repairs in another. Fetches have a queue for each
// snapshotter and registry.
type repairs struct {
	repairer
	mu      sync.Mutex
	queues  map[queueName]*queue
	running context.Context // of Run; nil before
	owned   sync.WaitGroup
	dropped atomic.Int64 // keys that were dropped because their registries no longer have the image
}

// queueName identifies a queue. registry is empty for repairs from local content.
type queueName struct{ snapshotter, registry string }

// repairFunc repairs or drops one key. It returns the longest delay before the repair is retried, or zero if it is done.
type repairFunc func(context.Context, queued) (retry time.Duration)

// queued is a lost key in a queue.
type queued struct {
	health.Loss
	since time.Time
	due   time.Time // when it is repaired next; zero if it was tried and has no time yet
}

// queue has the keys to repair in one snapshotter.
type queue struct {
	repairs *repairs
	repair  repairFunc
	losses  []queued                // guarded by repairs.mu
	keys    map[imagepin.Key]losses // that the queue has not repaired or dropped yet, guarded by repairs.mu
	more    chan struct{}           // has one element if there are new losses
}

// losses is how many losses of a key a queue has.
type losses struct {
	all int
	// damaged are those of a recorded key, which end when the key is ready or removed, also by a call.
	damaged int
}

func (l losses) plus(loss health.Loss, n int) losses {
	l.all += n
	if loss.Record == "" && !loss.Moved && !loss.Superseded {
		l.damaged += n
	}
	return l
}

func newRepairs(r repairer) *repairs {
	p := &repairs{repairer: r, queues: make(map[queueName]*queue)}
	p.again = p.addAgain
	return p
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
	p.enqueue(ctx, name, l, repair)
}

// enqueue is addTo for a caller that holds the mutex.
func (p *repairs) enqueue(ctx context.Context, name queueName, l health.Loss, repair repairFunc) {
	q := p.queues[name]
	if q == nil {
		q = &queue{repairs: p, repair: repair, keys: make(map[imagepin.Key]losses), more: make(chan struct{}, 1)}
		p.queues[name] = q
		p.owned.Go(func() {
			q.run(ctx)
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.queues, name)
		})
	}
	q.losses = append(q.losses, queued{Loss: l, since: time.Now()})
	q.keys[l.Entry.Key] = q.keys[l.Entry.Key].plus(l, 1)
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// begin makes addOnce add losses, which are repaired until ctx ends. end makes it add none.
func (p *repairs) begin(ctx context.Context) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = ctx
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running = nil
	}
}

// addAgain queues a loss, also of a key that is queued. It does nothing if no repairs run.
func (p *repairs) addAgain(l health.Loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil {
		p.enqueue(p.running, queueName{snapshotter: l.Entry.Target.Snapshotter}, l, p.repairOne)
	}
}

// addOnce queues the loss of a key, unless it is queued already. It does nothing if no repairs run.
func (p *repairs) addOnce(l health.Loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.queues {
		if q.keys[l.Entry.Key].all > 0 {
			return
		}
	}
	if p.running != nil {
		p.enqueue(p.running, queueName{snapshotter: l.Entry.Target.Snapshotter}, l, p.repairOne)
	}
}

// pending returns the number of keys that are not repaired or dropped yet.
func (p *repairs) pending() (n int) {
	for key, queued := range p.queued() {
		if _, ready := p.config.Store.Get(key); ready {
			continue // a call has repaired it before the queue does
		}
		n += queued.all - queued.damaged
		if _, recorded := p.config.Store.GetDamaged(key); recorded && queued.damaged > 0 {
			n++
		}
	}
	return n
}

// queued returns the losses of all queues.
func (p *repairs) queued() map[imagepin.Key]losses {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[imagepin.Key]losses)
	for _, q := range p.queues {
		for key, l := range q.keys {
			all[key] = losses{all[key].all + l.all, all[key].damaged + l.damaged}
		}
	}
	return all
}

// done notes that the losses in all are repaired or dropped, except those that are retried.
func (q *queue) done(all, retried []queued) {
	q.repairs.mu.Lock()
	defer q.repairs.mu.Unlock()
	for _, l := range all {
		if q.keys[l.Entry.Key] = q.keys[l.Entry.Key].plus(l.Loss, -1); q.keys[l.Entry.Key].all == 0 {
			delete(q.keys, l.Entry.Key)
		}
	}
	for _, l := range retried {
		q.keys[l.Entry.Key] = q.keys[l.Entry.Key].plus(l.Loss, 1)
	}
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
		q.done(all, waiting)
		if longest > 0 {
			pause = min(pause, longest)
			if longest == repairLastRefused {
				pause = max(pause, repairLast)
			}
		}
		if len(waiting) > 0 {
			again = time.After(schedule(waiting, pause))
		}
	}
}

// schedule makes the losses that were tried just now due after a pause. It returns when the first loss is due. One that became
// due while others were tried is due at once.
func schedule(waiting []queued, pause time.Duration) (next time.Duration) {
	now := time.Now()
	next = pause
	for i := range waiting {
		if waiting[i].due.IsZero() {
			waiting[i].due = now.Add(pause)
		}
		next = min(next, waiting[i].due.Sub(now))
	}
	return next
}

// recheck updates the losses that have to wait.
func (p *repairs) recheck(ctx context.Context, waiting []queued) []queued {
	have, err := p.config.Checker.Inventory(ctx)
	if err != nil {
		return waiting
	}
	for i, w := range waiting {
		if known, ok := p.config.Store.GetDamaged(w.Entry.Key); ok && known.Record == w.Entry.Record {
			w.Entry.DamagedAt = known.DamagedAt // what was found may show only to a check that reads everything
		}
		loss, lost := p.config.Checker.Lost(w.Entry, have)
		if !lost {
			loss = health.Loss{Entry: w.Entry, Reason: w.Reason, Unpackable: true} // its snapshot exists now
		}
		loss.Record, loss.Moved, loss.NewTarget, loss.Superseded = w.Record, w.Moved, w.NewTarget, w.Superseded
		waiting[i].Loss = loss
	}
	return waiting
}

// repairAll repairs the losses that are due. It returns those to retry, and the longest delay before that, or zero if it tried
// none of them.
func repairAll(ctx context.Context, losses []queued, repair repairFunc) (again []queued, longest time.Duration) {
	var (
		g  errgroup.Group
		mu sync.Mutex
	)
	g.SetLimit(repairers)
	now := time.Now()
	for _, loss := range losses {
		if loss.due.After(now) { // a new loss does not make the others due
			mu.Lock()
			again = append(again, loss)
			mu.Unlock()
			continue
		}
		g.Go(func() error {
			retry := repairLast
			if !loss.Unknown {
				retry = repair(ctx, loss)
			}
			if retry > 0 {
				mu.Lock()
				defer mu.Unlock()
				if loss.due = (time.Time{}); longest == 0 || retry < longest {
					longest = retry
				}
				again = append(again, loss)
			}
			return nil
		})
	}
	_ = g.Wait() // no function fails, again has the losses to retry
	return again, longest
}

// retryAfter returns the longest delay before a repair that failed with err is retried.
func retryAfter(err error) time.Duration {
	if isBlocked(err) {
		return repairLastInUse
	}
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

// repairOne repairs one key from local content. If that is not sufficient, it queues its fetch, or keeps it as damaged. It is
// a [repairFunc].
func (p *repairs) repairOne(ctx context.Context, loss queued) (retry time.Duration) {
	e := loss.Entry
	entry := logOf(ctx, e)
	defer afterPanic(entry, &retry)
	if loss.Superseded {
		return p.dropLost(ctx, e)
	}
	if p.isReady(loss.Loss) {
		return 0
	}
	verified, done, err := p.repairLocal(ctx, loss.Loss)
	loss.Loss = verified
	lacksPart := errors.As(err, new(notUnpacked)) && (errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err))
	switch {
	case done == Recorded:
		entry.Infof("key is ready again: %s", loss.Reason)
	case done == Replaced:
		entry.Infof("replaced the files of a snapshot: %s", loss.Reason)
	case done == Unpacked:
		entry.Infof("repaired key from local content: %s", loss.Reason)
	case err != nil && !lacksPart:
		return p.keepDamaged(ctx, loss.Loss, err, retryAfter(err))
	}
	if done != "" {
		return 0
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
	if _, ok := p.config.Runtimes().ForTarget(e.Target); !ok {
		p.keepDamaged(ctx, loss.Loss, errNoHandler, 0)
		return 0 // a start with another configuration looks at it again
	}
	if name, ok := p.fetchQueue(e); ok {
		p.addTo(ctx, name, loss.Loss, p.fetchOne)
		return 0
	}
	return p.keepDamaged(ctx, loss.Loss, errNoRegistry, repairLastFetch)
}

var (
	errNoHandler  = errors.New("no runtime handler has its target")
	errNoRegistry = errors.New("its image was imported from a file, and no registry is known to have it")
)

// isReady reports whether a call has made a lost key ready.
func (p *repairs) isReady(loss health.Loss) bool {
	now, ok := p.config.Store.Get(loss.Entry.Key)
	return ok && loss.Record == "" && now.Record == loss.Entry.Record && now.Root.Digest == loss.Entry.Root.Digest
}

// keepDamaged records that a key is damaged because a repair failed with err. It returns retry, or zero if the key is ready or
// not recorded any more. Only the first failure is logged as a warning.
func (p *repairs) keepDamaged(ctx context.Context, loss health.Loss, err error, retry time.Duration) time.Duration {
	if ctx.Err() != nil {
		return repairLast
	}
	entry := logOf(ctx, loss.Entry).WithError(imagepin.BoundError(err, imagepin.MaxLogText))
	if loss.Record != "" || loss.Moved { // it has no key yet
		entry.Warnf("cannot unpack image yet, retrying: %s", loss.Reason)
		return retry
	}
	known, noted := p.config.Store.GetDamaged(loss.Entry.Key)
	kept, merr := p.config.Store.MarkDamaged(ctx, loss.Entry, loss.Reason)
	switch {
	case merr != nil:
		entry.WithField("mark", merr.Error()).Warnf("cannot repair key yet, and cannot record that it is damaged: %s", loss.Reason)
		return max(retry, repairLast)
	case !kept: // it is ready, or not recorded any more
		return p.dropLost(ctx, loss.Entry)
	case noted && !known.DamagedAt.IsZero() && known.Reason == loss.Reason:
		entry.Debugf("cannot repair key yet, it stays damaged: %s", loss.Reason)
	default:
		entry.Warnf("cannot repair key yet, keeping it as damaged and retrying: %s", loss.Reason)
	}
	return retry
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
	return health.Loss{Entry: e, Reason: "the default snapshotter changed", Unpackable: true, NewTarget: true}, !ready
}
