package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// answerTimeout limits how long Run waits for an answer of a snapshotter, as the inventory does.
const answerTimeout = 10 * time.Second

// errSilent means that a snapshotter did not respond in time.
var errSilent = errors.New("the snapshotter does not respond")

// unanswered are snapshots about which a snapshotter has returned no answer. A goroutine for each snapshotter asks again
// until it does. Run then reconciles the snapshot.
type unanswered struct {
	// answered is called with each snapshot about which there is an answer.
	answered func(ctx context.Context, s store.Snapshot)
	has      func(ctx context.Context, snapshotter string, chainID digest.Digest) (bool, error)
	timeout  time.Duration
	owned    sync.WaitGroup
	mu       sync.Mutex
	open     map[string]*questions // by snapshotter
}

// questions are the snapshots of one snapshotter. They are guarded by unanswered.mu.
type questions struct {
	names  map[digest.Digest]bool
	silent bool // the snapshotter did not respond in time when it was asked last
}

func newUnanswered(has func(ctx context.Context, snapshotter string, chainID digest.Digest) (bool, error), answered func(context.Context, store.Snapshot)) *unanswered {
	return &unanswered{answered: answered, has: has, timeout: answerTimeout, open: make(map[string]*questions)}
}

// wait waits until nothing is asked any more. It ends with the context of ask.
func (u *unanswered) wait() { u.owned.Wait() }

// ask runs fn, which asks a snapshotter about a snapshot. If fn fails, the snapshotter is asked again in the background.
// The context of fn ends after the timeout, and ask then fails with errSilent. While the snapshotter does not respond,
// that context has ended before fn runs.
func (u *unanswered) ask(ctx context.Context, s store.Snapshot, fn func(context.Context) error) error {
	timeout := u.timeout
	if u.isSilent(s.Snapshotter) {
		timeout = 0
	}
	err := within(ctx, timeout, fn)
	if err != nil && ctx.Err() == nil {
		u.add(ctx, s, errors.Is(err, errSilent))
	}
	return err
}

// within runs fn with a context that ends after a timeout. It fails with errSilent if fn fails after that.
func within(ctx context.Context, timeout time.Duration, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errSilent)
	defer cancel()
	err := fn(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

// add notes a snapshot to ask about until ctx ends.
func (u *unanswered) add(ctx context.Context, s store.Snapshot, silent bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	q := u.open[s.Snapshotter]
	if q == nil {
		q = &questions{names: make(map[digest.Digest]bool)}
		u.open[s.Snapshotter] = q
		u.owned.Go(func() { u.run(ctx, s.Snapshotter) })
	}
	if silent && !q.silent {
		log.G(ctx).WithField("snapshotter", s.Snapshotter).Warn("snapshotter does not respond, asking it again")
	}
	q.names[s.ChainID] = true
	q.silent = q.silent || silent
}

func (u *unanswered) isSilent(snapshotter string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	q := u.open[snapshotter]
	return q != nil && q.silent
}

// run asks a snapshotter about its snapshots until it has answered about all of them.
func (u *unanswered) run(ctx context.Context, snapshotter string) {
	for delay := repairFirst; ; delay = pause.Next(delay, repairFirst, repairLast) {
		names := u.remaining(snapshotter)
		if len(names) == 0 {
			return
		}
		if pause.Wait(ctx, delay) != nil {
			u.forget(snapshotter)
			return
		}
		for _, name := range names {
			s := store.Snapshot{Snapshotter: snapshotter, ChainID: name}
			err := u.askAgain(ctx, s)
			if u.note(s, err); errors.Is(err, errSilent) {
				break
			}
			if err == nil {
				u.answered(ctx, s)
			}
		}
	}
}

// remaining returns the snapshots to ask a snapshotter about, in order. If there are none, the caller must return.
func (u *unanswered) remaining(snapshotter string) []digest.Digest {
	u.mu.Lock()
	defer u.mu.Unlock()
	names := slices.Sorted(maps.Keys(u.open[snapshotter].names))
	if len(names) == 0 {
		delete(u.open, snapshotter)
	}
	return names
}

func (u *unanswered) forget(snapshotter string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.open, snapshotter)
}

func (u *unanswered) askAgain(ctx context.Context, s store.Snapshot) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return within(ctx, u.timeout, func(ctx context.Context) error {
		_, err := u.has(ctx, s.Snapshotter, s.ChainID)
		return err
	})
}

// note notes the result of a question.
func (u *unanswered) note(s store.Snapshot, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	q := u.open[s.Snapshotter]
	q.silent = errors.Is(err, errSilent)
	if err == nil {
		delete(q.names, s.ChainID)
	}
}

// hasSnapshot reports whether an image is unpacked in a snapshotter.
type hasSnapshot func(snapshotter string, chainID digest.Digest) (bool, error)

// inInventory looks for snapshots in an inventory. A snapshotter that does not respond is asked again later.
func (u *unanswered) inInventory(ctx context.Context, have *health.Inventory) hasSnapshot {
	return func(snapshotter string, chainID digest.Digest) (bool, error) {
		if chainID == "" || have.Responds(snapshotter) && !u.isSilent(snapshotter) {
			return have.HasSnapshot(snapshotter, chainID), nil
		}
		u.add(ctx, store.Snapshot{Snapshotter: snapshotter, ChainID: chainID}, true)
		return false, errSilent
	}
}

// onNode looks for snapshots in the snapshotters.
func (u *unanswered) onNode(ctx context.Context) hasSnapshot {
	return func(snapshotter string, chainID digest.Digest) (here bool, _ error) {
		err := u.ask(ctx, store.Snapshot{Snapshotter: snapshotter, ChainID: chainID}, func(ctx context.Context) (err error) {
			here, err = u.has(ctx, snapshotter, chainID)
			return err
		})
		return here, err
	}
}

// forReport looks for snapshots in the snapshotters. It waits only once for one that does not respond.
func (u *unanswered) forReport(ctx context.Context) hasSnapshot {
	silent := make(map[string]error)
	return func(snapshotter string, chainID digest.Digest) (here bool, _ error) {
		if err := silent[snapshotter]; err != nil {
			return false, err
		}
		err := within(ctx, u.timeout, func(ctx context.Context) (err error) {
			here, err = u.has(ctx, snapshotter, chainID)
			return err
		})
		if errors.Is(err, errSilent) {
			err = fmt.Errorf("snapshotter %s does not respond", snapshotter)
			silent[snapshotter] = err
		}
		return here, err
	}
}
