package flight

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestEqualCallsShareOneRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			g    Group[int]
			runs atomic.Int32
			wg   sync.WaitGroup
			hold = make(chan struct{})
		)
		for range 100 {
			wg.Go(func() {
				v, err := g.Do(t.Context(), "k", func(context.Context) (int, error) {
					runs.Add(1)
					<-hold
					return 7, nil
				})
				if v != 7 || err != nil {
					t.Errorf("got %d, %v", v, err)
				}
			})
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		if runs.Load() != 1 {
			t.Errorf("ran %d times", runs.Load())
		}
		if len(g.calls) != 0 {
			t.Error("the key is remembered after use")
		}
	})
}

func TestWorkEndsWithItsLastCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			g       Group[int]
			cause   error
			one     = make(chan error, 1)
			two     = make(chan error, 1)
			c1, ca1 = context.WithCancel(t.Context())
			c2, ca2 = context.WithCancel(t.Context())
		)
		work := func(ctx context.Context) (int, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return 0, cause
		}
		go func() { _, err := g.Do(c1, "k", work); one <- err }()
		go func() { _, err := g.Do(c2, "k", work); two <- err }()
		synctest.Wait()
		ca1()
		if err := <-one; !errors.Is(err, context.Canceled) {
			t.Errorf("first caller got %v", err)
		}
		if synctest.Wait(); cause != nil {
			t.Fatal("the work ended while a caller was left")
		}
		ca2()
		if err := <-two; !errors.Is(err, context.Canceled) {
			t.Errorf("second caller got %v", err)
		}
		if !errors.Is(cause, ErrAbandoned) {
			t.Errorf("the work ended with %v before its caller returned", cause)
		}
	})
}

func TestKeptWorkIsJoinedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			g    Group[int]
			hold = make(chan struct{})
			runs int
		)
		work := func(ctx context.Context) (int, error) {
			runs++
			select {
			case <-hold:
				return 7, nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.DoKept(ctx, "k", work); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		go func() { synctest.Wait(); close(hold) }()
		if v, err := g.DoKept(t.Context(), "k", work); v != 7 || err != nil || runs != 1 {
			t.Errorf("got %d, %v after %d runs", v, err, runs)
		}
	})
}

func TestPanicIsAnError(t *testing.T) {
	var g Group[int]
	_, err := g.Do(t.Context(), "k", func(context.Context) (int, error) { panic("boom") })
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got %v", err)
	}
}
