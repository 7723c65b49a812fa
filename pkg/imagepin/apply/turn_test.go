package apply

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

// TestOneApply checks that one lock is applied at a time, and that the error of another call names it.
func TestOneApply(t *testing.T) {
	e := newEnv(t, handlers...)
	making, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	e.machine.make = func(context.Context, pull.Locked) error {
		once.Do(func() { close(making) })
		<-goOn
		return nil
	}
	r := Request{Lock: lockOf(t, image(t, "app:1", "one", "linux/amd64")), Name: "first.yaml"}
	first := make(chan error)
	go func() {
		_, err := e.Apply(e.ctx, r)
		first <- err
	}()
	<-making
	for name, call := range map[string]func() error{
		"Apply":        func() error { _, err := e.Apply(e.ctx, r); return err },
		"ApplyDropped": func() error { _, err := e.ApplyDropped(e.ctx, Request{}, true); return err },
		"Detach":       func() error { return e.Detach(e.ctx, func(context.Context) error { t.Error("it runs"); return nil }) },
	} {
		if err := call(); !hasReason(err, imagepin.ApplyInProgress) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	noError(t, e.complete(e.ctx)) // leaves it to the apply
	if st := e.Status(); st.Applying == nil || st.Applying.Phase != Preparing || st.Failed != nil {
		t.Errorf("status during the apply: %+v", st.Applying)
	}
	close(goOn)
	noError(t, <-first)
	if st := e.Status(); st.Applying != nil || e.locked("app:1") != "one" {
		t.Errorf("status after the apply: %+v", st.Applying)
	}
}

// TestApplyPrecedesRepair checks that an apply cancels a repair that waits for a registry, and does not wait for it longer than
// its caller.
func TestApplyPrecedesRepair(t *testing.T) {
	e := newEnv(t, handlers...)
	_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "one", "linux/amd64"))})
	noError(t, err)
	clear(e.machine.entries)
	repairing, ended := make(chan struct{}), make(chan struct{})
	e.machine.make = func(ctx context.Context, l pull.Locked) error {
		if l.Root.Digest != root("one").Digest {
			return nil
		}
		close(repairing)
		<-ctx.Done()
		<-ended
		return ctx.Err()
	}
	repaired := make(chan error)
	go func() { repaired <- e.complete(e.ctx) }()
	<-repairing
	next := Request{Lock: lockOf(t, image(t, "app:1", "two", "linux/amd64"))}
	impatient, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, err := e.Apply(impatient, next); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: got %v", err)
	}
	applied := make(chan error)
	go func() {
		_, err := e.Apply(e.ctx, next)
		applied <- err
	}()
	close(ended)
	if err := <-repaired; err != nil {
		t.Errorf("the repair failed: %v", err)
	}
	if noError(t, <-applied); e.locked("app:1") != "two" {
		t.Errorf("locked %s", e.locked("app:1"))
	}
}

// TestDetach checks that a detached apply is the only one from the call on, and that its failure is in the status.
func TestDetach(t *testing.T) {
	e := newEnv(t, handlers...)
	e.inBubble(t, func(t *testing.T) {
		gone, cancel := context.WithCancel(e.ctx)
		cancel()
		if err := e.Detach(gone, func(context.Context) error { t.Error("it runs"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("nothing runs: got %v", err)
		}
		running, stop := context.WithCancel(e.ctx)
		var run sync.WaitGroup
		run.Go(func() { e.Run(running) })
		synctest.Wait()
		goOn := make(chan struct{})
		detach := func(text string) {
			t.Helper()
			err := e.Detach(e.ctx, func(ctx context.Context) error {
				<-goOn
				_, err := e.Apply(ctx, Request{Lock: lockOf(t, image(t, "app:1", text, "linux/amd64")), Name: text})
				return err
			})
			noError(t, err)
		}
		detach("one")
		if _, err := e.Apply(e.ctx, Request{}); !hasReason(err, imagepin.ApplyInProgress) {
			t.Errorf("during a detached apply: got %v", err)
		}
		goOn <- struct{}{}
		if synctest.Wait(); e.locked("app:1") != "one" {
			t.Errorf("locked %q", e.locked("app:1"))
		}
		e.machine.make = func(context.Context, pull.Locked) error { return errdefs.ErrUnavailable }
		detach("two")
		goOn <- struct{}{}
		if synctest.Wait(); e.Status().Failed == nil || e.Status().Failed.Name != "two" {
			t.Errorf("status %+v", e.Status().Failed)
		}
		other := errors.New("other")
		noError(t, e.Detach(e.ctx, func(context.Context) error { return other }))
		if synctest.Wait(); e.Status().Failed.Err != other {
			t.Errorf("a failure without an apply: %+v", e.Status().Failed)
		}
		stop()
		run.Wait()
	})
}

// TestRun checks what Run does over time: nothing while the lock is complete, repairs within a minute, and pauses that grow
// while a registry is down.
func TestRun(t *testing.T) {
	e := newEnv(t, handlers...)
	e.inBubble(t, func(t *testing.T) {
		running, stop := context.WithCancel(e.ctx)
		var run sync.WaitGroup
		run.Go(func() { e.Run(running) })
		_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "one", "linux/amd64"))})
		noError(t, err)
		e.took()
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		wait(time.Hour)
		if got := e.took(); len(got) != 0 {
			t.Errorf("made %q without need", got)
		}
		forget := func() {
			e.machine.mu.Lock()
			defer e.machine.mu.Unlock()
			clear(e.machine.entries)
		}
		forget()
		wait(checkPeriod)
		if got := e.took(); !slices.Equal(got, []string{"app:1 linux/amd64 on native", "app@one linux/amd64 on native"}) {
			t.Errorf("repaired %q", got)
		}
		var tried []time.Duration
		start := time.Now()
		e.machine.make = func(_ context.Context, l pull.Locked) error {
			if _, digested := l.Ref.(reference.Digested); digested {
				tried = append(tried, time.Since(start))
			}
			return errdefs.ErrUnavailable
		}
		forget()
		wait(130 * time.Minute)
		want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 96, 128}
		for i := range want {
			want[i] *= time.Minute
		}
		if !slices.Equal(tried, want) {
			t.Errorf("tried after %v, want %v", tried, want)
		}
		stop()
		run.Wait()
	})
}
