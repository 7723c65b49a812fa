// Package flight merges concurrent identical calls, as golang.org/x/sync/singleflight does. Unlike that package, it
// cancels the work when all callers have gone.
package flight

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// errAbandoned is the cause of the work's context when its last caller has gone.
var errAbandoned = errors.New("no caller is left")

// Group runs work once per key at a time. The zero value is ready for use.
type Group[T any] struct {
	mu    sync.Mutex
	calls map[string]*call[T]
	all   map[*call[T]]bool // running, also those that are not joined any more
	ended error             // the error of every call after Shutdown
	works sync.WaitGroup    // running work, also without callers
}

type call[T any] struct {
	done     chan struct{}
	value    T
	err      error
	waiters  int
	detached bool // continues without waiters
	cancel   context.CancelCauseFunc
}

// Do returns the result of work. If work for the key is running, Do waits for that instead of starting its own. The
// work's context has the values of the first caller's context. It is canceled when all callers have gone.
//
// A panic in work is returned as an error.
func (g *Group[T]) Do(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	return g.do(ctx, key, false, false, work)
}

// DoNew is Do for a caller that needs a result of work that begins now: it does not join running work. Later calls join its work.
func (g *Group[T]) DoNew(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	return g.do(ctx, key, true, false, work)
}

// DoDetached is Do for work that continues after its callers have gone, so that a later call can join it.
func (g *Group[T]) DoDetached(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	return g.do(ctx, key, false, true, work)
}

func (g *Group[T]) do(ctx context.Context, key string, begin, keep bool, work func(context.Context) (T, error)) (zero T, _ error) {
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return zero, g.ended
	}
	c := g.calls[key]
	if c == nil || begin {
		c = g.start(ctx, key, work)
	}
	c.waiters++
	c.detached = c.detached || keep
	g.mu.Unlock()

	select {
	case <-c.done:
		return c.value, c.err
	case <-ctx.Done():
	}

	g.mu.Lock()
	c.waiters--
	if c.waiters == 0 && !c.detached {
		// A later call must start its own work, not join work that is canceled.
		if g.calls[key] == c {
			delete(g.calls, key)
		}
		c.cancel(errAbandoned)
		g.mu.Unlock()
		// The last caller waits for the end of the work, so that nothing of it is left when the call returns.
		<-c.done
		return zero, context.Cause(ctx)
	}
	g.mu.Unlock()
	return zero, context.Cause(ctx)
}

func (g *Group[T]) start(ctx context.Context, key string, work func(context.Context) (T, error)) *call[T] {
	wctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	c := &call[T]{done: make(chan struct{}), cancel: cancel}
	if g.calls == nil {
		g.calls, g.all = make(map[string]*call[T]), make(map[*call[T]]bool)
	}
	g.calls[key], g.all[c] = c, true
	g.works.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				c.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
			g.mu.Lock()
			if g.calls[key] == c {
				delete(g.calls, key)
			}
			delete(g.all, c)
			g.mu.Unlock()
			cancel(nil)
			close(c.done)
		}()
		c.value, c.err = work(wctx)
	})
	return c
}

// Shutdown makes every later call fail with why, which must not be nil, cancels running work, and waits for its end. It
// returns the context's error if the context ends first.
func (g *Group[T]) Shutdown(ctx context.Context, why error) error {
	g.mu.Lock()
	g.ended = why
	for c := range g.all {
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
