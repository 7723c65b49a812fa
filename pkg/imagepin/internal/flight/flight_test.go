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

func TestConcurrentCallsShareOneRun(t *testing.T) {
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
			t.Errorf("work ran %d times, want 1", runs.Load())
		}
		if len(g.calls) != 0 {
			t.Error("the key remains after use")
		}
	})
}

// TestNewWork: DoNew begins work beside that which runs. Later calls join the new work, and a shutdown ends both.
func TestNewWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		runs := 0
		ended := errors.New("ended")
		begin := func(do func(context.Context, string, func(context.Context) (int, error)) (int, error)) chan int {
			result := make(chan int, 1)
			go func() {
				n, _ := do(t.Context(), "k", func(ctx context.Context) (int, error) {
					runs++
					n := runs
					<-ctx.Done()
					if context.Cause(ctx) != ended {
						t.Errorf("work %d ends with %v", n, context.Cause(ctx))
					}
					return n, nil
				})
				result <- n
			}()
			synctest.Wait()
			return result
		}
		first, second, third := begin(g.Do), begin(g.DoNew), begin(g.Do)
		if err := g.Shutdown(t.Context(), ended); err != nil {
			t.Fatal(err)
		}
		if a, b, c := <-first, <-second, <-third; a != 1 || b != 2 || c != 2 {
			t.Errorf("got the results of work %d, %d and %d, want 1, 2 and 2", a, b, c)
		}
		if len(g.calls)+len(g.all) != 0 {
			t.Error("something remains after use")
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
			t.Errorf("first caller: got %v, want context.Canceled", err)
		}
		if synctest.Wait(); cause != nil {
			t.Fatal("the work was canceled while a caller was waiting")
		}
		ca2()
		if err := <-two; !errors.Is(err, context.Canceled) {
			t.Errorf("second caller: got %v, want context.Canceled", err)
		}
		if !errors.Is(cause, errAbandoned) {
			t.Errorf("the work ended with %v, want %v", cause, errAbandoned)
		}
	})
}

func TestDetachedWorkIsJoinedLater(t *testing.T) {
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
		if _, err := g.DoDetached(ctx, "k", work); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want context.Canceled", err)
		}
		go func() { synctest.Wait(); close(hold) }()
		if v, err := g.DoDetached(t.Context(), "k", work); v != 7 || err != nil || runs != 1 {
			t.Errorf("got %d, %v after %d runs, want 7 after 1", v, err, runs)
		}
	})
}

func TestPanicIsAnError(t *testing.T) {
	var g Group[int]
	_, err := g.Do(t.Context(), "k", func(context.Context) (int, error) { panic("boom") })
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got %v, want the text of the panic", err)
	}
}

func TestShutdownStopsDetachedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			g     Group[int]
			over  bool
			cause error
			hold  = make(chan struct{})
			why   = errors.New("ended")
		)
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.DoDetached(canceled, "detached", func(ctx context.Context) (int, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			<-hold
			over = true
			return 0, cause
		}); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want context.Canceled", err)
		}
		if err := g.Shutdown(canceled, why); !errors.Is(err, context.Canceled) || over {
			t.Errorf("canceled Shutdown: got %v, work is over: %t", err, over)
		}
		go func() { synctest.Wait(); close(hold) }()
		if err := g.Shutdown(t.Context(), why); err != nil || !over {
			t.Errorf("Shutdown: got %v, work is over: %t", err, over)
		}
		if !errors.Is(cause, why) {
			t.Errorf("the work ended with %v, want %v", cause, why)
		}
		_, err := g.Do(t.Context(), "later", func(context.Context) (int, error) {
			t.Error("work started after Shutdown")
			return 0, nil
		})
		if !errors.Is(err, why) {
			t.Errorf("a later call: got %v, want %v", err, why)
		}
	})
}

// TestJoinHonorsContext checks that a caller that joins work returns when its context is canceled.
func TestJoinHonorsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		hold := make(chan struct{})
		first := make(chan error, 1)
		go func() {
			_, err := g.Do(t.Context(), "k", func(context.Context) (int, error) { <-hold; return 7, nil })
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.Do(ctx, "k", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		close(hold)
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}
