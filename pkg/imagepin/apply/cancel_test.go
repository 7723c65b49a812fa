package apply

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

// dripping lets the images of a lock other than those before it wait for a registry until their apply ends. making is closed when the
// first one waits.
func (e *env) dripping(known ...string) (making chan struct{}) {
	making = make(chan struct{})
	var once sync.Once
	e.machine.make = func(ctx context.Context, l pull.Locked) error {
		for _, text := range known {
			if l.Root.Digest == root(text).Digest {
				return nil
			}
		}
		once.Do(func() { close(making) })
		<-ctx.Done()
		return ctx.Err()
	}
	return making
}

// applyTexts applies one lock for each text.
func (e *env) applyTexts(t *testing.T, all ...string) {
	t.Helper()
	for _, text := range all {
		_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", text, "linux/amd64"))})
		noError(t, err)
	}
}

// TestCancel checks what ends an apply whose registry drips: a rollback, a removal and a cancellation, but not another apply, nor a
// rollback or a removal that has nothing to do.
func TestCancel(t *testing.T) {
	for name, c := range map[string]struct {
		before []string
		call   func(e *env) error
		locked string
	}{
		"cancel": {[]string{"one"}, func(e *env) error {
			_, err := e.Rollback(e.ctx, Request{})
			if !hasReason(err, imagepin.UnknownLock) || e.Status().Applying == nil {
				t.Errorf("a rollback without a lock before: got %v, %+v", err, e.Status().Applying)
			}
			_, err = e.Remove(e.ctx, true)
			if !hasReason(err, imagepin.UnknownLock) || e.Status().Applying == nil {
				t.Errorf("a removal without a lock before: got %v, %+v", err, e.Status().Applying)
			}
			canceled, err := e.Cancel(e.ctx)
			if !canceled {
				t.Error("nothing was canceled")
			}
			return err
		}, "one"},
		"rollback": {[]string{"one", "two"}, func(e *env) error { _, err := e.Rollback(e.ctx, Request{}); return err }, "one"},
		"remove":   {[]string{"one"}, func(e *env) error { _, err := e.Remove(e.ctx, false); return err }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, handlers...)
			e.applyTexts(t, c.before...)
			making := e.dripping(c.before...)
			ended := make(chan error)
			go func() {
				_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "next", "linux/amd64"))})
				ended <- err
			}()
			<-making
			result := make(chan error)
			go func() { result <- c.call(e) }()
			if err := <-ended; !hasReason(err, imagepin.ApplyCanceled) {
				t.Errorf("the apply: got %v", err)
			}
			noError(t, <-result)
			if st := e.Status(); st.Applying != nil || e.locked("app:1") != c.locked || (st.Failed == nil) != (name != "cancel") {
				t.Errorf("status %+v, locked %q", st, e.locked("app:1"))
			}
			if canceled, err := e.Cancel(e.ctx); canceled || err != nil {
				t.Errorf("canceled again: %v, %v", canceled, err)
			}
		})
	}
}

// TestCancelDetached checks that a detached apply can be canceled, and that of the drop directories, which is not tried again.
func TestCancelDetached(t *testing.T) {
	for name, dropped := range map[string]bool{"detached": false, "drop directories": true} {
		t.Run(name, func(t *testing.T) {
			e := newDropped(t)
			e.applyTexts(t, "one", "two")
			e.inBubble(t, func(t *testing.T) {
				e.dripping("one", "two")
				if dropped {
					drop(t, e.locks, "a.yaml", image(t, "app:1", "next", "linux/amd64"))
				}
				running, stop := context.WithCancel(e.ctx)
				var run sync.WaitGroup
				run.Go(func() { e.Run(running) })
				synctest.Wait()
				if !dropped {
					noError(t, e.Detach(e.ctx, func(ctx context.Context) error {
						_, err := e.Apply(ctx, Request{Lock: lockOf(t, image(t, "app:1", "next", "linux/amd64"))})
						return err
					}))
					synctest.Wait()
				}
				if e.Status().Applying == nil {
					t.Fatal("nothing is applied")
				}
				_, err := e.Rollback(e.ctx, Request{})
				noError(t, err)
				time.Sleep(time.Hour)
				synctest.Wait()
				if st := e.Status(); e.locked("app:1") != "one" || st.Applying != nil || (st.Dropped != "") != dropped {
					t.Errorf("after a rollback: locked %q, %+v", e.locked("app:1"), st)
				}
				if result, err := e.ApplyDropped(e.ctx, Request{}, false); err != nil || result.Lock != "" {
					t.Errorf("at the next start: %+v, %v", result, err)
				}
				stop()
				run.Wait()
			})
		})
	}
}

// TestDryRunOfDroppedIsNotApplied checks that a dry run that is canceled leaves the drop directories to be applied.
func TestDryRunOfDroppedIsNotApplied(t *testing.T) {
	e := newDropped(t)
	e.applyTexts(t, "one", "two")
	drop(t, e.locks, "a.yaml", image(t, "app:1", "next", "linux/amd64"))
	verifying, goOn := make(chan struct{}), make(chan struct{})
	ended := make(chan struct{})
	e.machine.entries[imagepin.Key{Ref: "elsewhere"}] = imagepin.Entry{Root: root("next")} // its descriptor is known
	var once sync.Once
	e.machine.verify = func(string) error {
		once.Do(func() { close(verifying); <-goOn })
		return nil
	}
	go func() {
		defer close(ended)
		_, _ = e.ApplyDropped(e.ctx, Request{DryRun: true}, true)
	}()
	<-verifying
	rolled := make(chan error)
	go func() { _, err := e.Rollback(e.ctx, Request{}); rolled <- err }()
	close(goOn)
	<-ended
	noError(t, <-rolled)
	if d := e.Status().Dropped; d != "" {
		t.Errorf("dropped %s", d)
	}
}
