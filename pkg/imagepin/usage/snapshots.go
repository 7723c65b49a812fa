package usage

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// silence is how long a snapshotter may take to answer one call.
const silence = 2 * time.Second

// answer is what a snapshotter tells of its snapshots.
type answer struct {
	parents map[string]string
	sizes   map[string]int64 // of all committed snapshots
	err     error            // why it does not respond
}

// askSnapshotters asks all snapshotters that are needed, at the same time. It holds no mutex.
func (m *Meter) askSnapshotters(ctx context.Context, needs []need) map[string]answer {
	names := make(map[string]bool)
	for _, n := range needs {
		for s := range n.snapshots {
			names[s.snapshotter] = true
		}
	}
	var (
		asked   sync.WaitGroup
		mu      sync.Mutex
		answers = make(map[string]answer)
	)
	for name := range names {
		asked.Go(func() {
			a := m.ask(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			answers[name] = a
		})
	}
	asked.Wait()
	return answers
}

// ask asks a snapshotter for the sizes of its snapshots. It gives up if the snapshotter does not answer a call in time.
func (m *Meter) ask(ctx context.Context, name string) answer {
	snapshotter := m.config.Snapshotter(name)
	if snapshotter == nil {
		return answer{err: errNotLoaded}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan struct{}, 1)
	done := make(chan answer, 1) // the snapshotter may ignore its context
	go func() {
		done <- sizesOf(ctx, snapshotter, func() {
			select {
			case answered <- struct{}{}:
			default:
			}
		})
	}()
	patience := time.NewTimer(silence)
	defer patience.Stop()
	for {
		select {
		case a := <-done:
			return a
		case <-answered:
			patience.Reset(silence)
		case <-ctx.Done():
			return answer{err: context.Cause(ctx)}
		case <-patience.C:
			return answer{err: fmt.Errorf("no answer within %s", silence)}
		}
	}
}

// sizesOf returns the sizes of all committed snapshots. Of these, snapshotters record the size, and do not look at the files. It
// calls answered after each answer.
func sizesOf(ctx context.Context, snapshotter snapshots.Snapshotter, answered func()) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	a = answer{parents: make(map[string]string), sizes: make(map[string]int64)}
	err := snapshotter.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		answered()
		if i.Kind == snapshots.KindCommitted {
			a.parents[i.Name] = i.Parent
		}
		return ctx.Err()
	})
	if err != nil && !errdefs.IsNotFound(err) { // it has never had a snapshot
		return answer{err: err}
	}
	for name := range a.parents {
		used, err := snapshotter.Usage(ctx, name)
		if err != nil && !errdefs.IsNotFound(err) { // it was removed concurrently
			return answer{err: err}
		}
		answered()
		a.sizes[name] = used.Size
	}
	return a
}

// chain returns a snapshot that exists, and those below it.
func (a answer) chain(top string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name := top; name != ""; {
			parent, ok := a.parents[name]
			if !ok || !yield(name) {
				return
			}
			name = parent
		}
	}
}
