// Package flight lets equal calls share one run of the work, as
// golang.org/x/sync/singleflight does, and ends the work when nobody waits
// for it any more, which that package does not.
package flight

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// ErrAbandoned is the cause of the work's context when its last caller left.
var ErrAbandoned = errors.New("no caller is left")

// Group runs work once per key at a time. The zero value is ready for use.
type Group[T any] struct {
	mu    sync.Mutex
	calls map[string]*call[T]
	ended error          // what every call fails with; nil before the end
	works sync.WaitGroup // work under way, also what nobody waits for
}

type call[T any] struct {
	done    chan struct{}
	value   T
	err     error
	waiters int
	kept    bool // goes on without waiters
	cancel  context.CancelCauseFunc
}

// Do returns what work returns. A call that finds the key's work under way
// waits for that instead of starting its own. The work's context carries the
// first caller's values; it is cancelled when every caller has gone.
//
// A panic in work is returned as an error.
func (g *Group[T]) Do(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	return g.do(ctx, key, false, work)
}

// DoDetached is Do for work that goes on after its callers have gone, so that a
// later call can join it.
func (g *Group[T]) DoDetached(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	return g.do(ctx, key, true, work)
}

func (g *Group[T]) do(ctx context.Context, key string, keep bool, work func(context.Context) (T, error)) (T, error) {
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		var zero T
		return zero, g.ended
	}
	c := g.calls[key]
	if c == nil {
		c = g.start(ctx, key, work)
	}
	c.waiters++
	c.kept = c.kept || keep
	g.mu.Unlock()

	select {
	case <-c.done:
		return c.value, c.err
	case <-ctx.Done():
	}

	g.mu.Lock()
	c.waiters--
	if c.waiters == 0 && !c.kept {
		// Whoever comes now starts anew instead of joining work that ends.
		if g.calls[key] == c {
			delete(g.calls, key)
		}
		c.cancel(ErrAbandoned)
		g.mu.Unlock()
		// The caller that abandons the work waits for it to end, so that
		// nothing of it is left when the call returns.
		<-c.done
		var zero T
		return zero, context.Cause(ctx)
	}
	g.mu.Unlock()
	var zero T
	return zero, context.Cause(ctx)
}

func (g *Group[T]) start(ctx context.Context, key string, work func(context.Context) (T, error)) *call[T] {
	wctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	c := &call[T]{done: make(chan struct{}), cancel: cancel}
	if g.calls == nil {
		g.calls = make(map[string]*call[T])
	}
	g.calls[key] = c
	g.works.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				c.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
			g.mu.Lock()
			if g.calls[key] == c {
				delete(g.calls, key)
			}
			g.mu.Unlock()
			cancel(nil)
			close(c.done)
		}()
		c.value, c.err = work(wctx)
	})
	return c
}

// End makes every later call fail with why, which is not nil, cancels the work
// that is under way, and waits for its end. It returns the context's error if
// that ends first.
func (g *Group[T]) End(ctx context.Context, why error) error {
	g.mu.Lock()
	g.ended = why
	for _, c := range g.calls {
		c.cancel(why)
	}
	g.mu.Unlock()
	over := make(chan struct{})
	go func() {
		g.works.Wait()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
