package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// TestAddToLease checks that a lease keeps the content and snapshots of keys without records, and that keys whose
// content was collected are an error.
func TestAddToLease(t *testing.T) {
	e := newEnv(t)
	i, removed := e.image("a"), e.image("b")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, repo+":removed", removed, native, 0, "")
	known := entries(tag, i, native, 0)
	if err := e.store.AddToLease(e.ctx, known...); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without a lease: got %v, want a FailedPrecondition error", err)
	}
	ctx, done := e.Lease(t)
	for range 2 {
		if err := e.store.AddToLease(ctx, known...); err != nil {
			t.Fatal(err)
		}
	}
	e.remove(t, keysOf(known)...)
	e.remove(t, keysOf(entries(repo+":removed", removed, native, 0))...)
	if ok, err := e.store.Present(e.ctx, known[0]); err != nil || !ok {
		t.Errorf("content in the lease: present %v, %v, want true", ok, err)
	}
	if err := e.store.AddToLease(ctx, entries(repo+":removed", removed, native, 0)...); !errdefs.IsNotFound(err) {
		t.Errorf("after collection: got %v, want a NotFound error", err)
	}
	// The removal deleted the label that keeps the snapshot. Put sets it again.
	if _, err := e.store.Put(ctx, "", known...); err != nil {
		t.Fatal(err)
	}
	done()
	e.Collect(t)
	e.wantSound(t)
}

// TestAddReadyToLease checks that a lease keeps images that are ready, and that their snapshotter is not asked. Images that
// are not ready any more are an error, although their content and snapshots exist.
func TestAddReadyToLease(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	known := entries(tag, i, native, 0)
	if err := e.store.AddReadyToLease(e.ctx, known...); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without a lease: got %v, want a FailedPrecondition error", err)
	}
	e.store.Configuration().Snapshotter = func(string) snapshots.Snapshotter { return nil } // a call panics
	ctx, done := e.Lease(t)
	defer done()
	for range 2 {
		if err := e.store.AddReadyToLease(ctx, known...); err != nil {
			t.Fatal(err)
		}
	}
	e.remove(t, keysOf(known)...)
	e.store.Configuration().Snapshotter = e.Snapshotter
	if ok, err := e.store.Present(e.ctx, known[0]); err != nil || !ok {
		t.Errorf("content in the lease: present %v, %v, want true", ok, err)
	}
	if err := e.store.AddReadyToLease(ctx, known...); !errdefs.IsNotFound(err) {
		t.Errorf("after the removal: got %v, want a NotFound error", err)
	}
}

// hangingLeases blocks synchronous deletions until free is closed.
type hangingLeases struct {
	leases.Manager
	reached, free chan struct{}
}

func (l hangingLeases) Delete(ctx context.Context, lease leases.Lease, opts ...leases.DeleteOpt) error {
	if len(opts) > 0 {
		close(l.reached)
		select {
		case <-l.free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return l.Manager.Delete(ctx, lease, opts...)
}

// TestWritersDoNotWaitForCollection checks that writes succeed while a garbage collection is blocked, for example by a
// snapshotter that hangs.
func TestWritersDoNotWaitForCollection(t *testing.T) {
	for what, begin := range map[string]func(*env, image) error{
		"Collect": func(e *env, i image) error {
			if _, err := e.store.Remove(e.ctx, keysOf(entries(tag, i, native, 0))...); err != nil {
				return err
			}
			return e.store.Collect(e.ctx)
		},
		"Drop": func(e *env, i image) error {
			lost := entries(tag, i, native, 0)[0]
			e.store.Forget(entries(tag, i, native, 0)[0])
			return e.store.Drop(e.ctx, lost)
		},
	} {
		t.Run(what, func(t *testing.T) {
			e := newEnv(t)
			i, other := e.image("a"), e.image("b")
			e.pull(t, tag, i, native, 0, "")
			hanging := hangingLeases{e.Leases, make(chan struct{}), make(chan struct{})}
			e.store.Configuration().Leases = hanging
			ended := make(chan error, 1)
			go func() { ended <- begin(e, i) }()
			<-hanging.reached
			ctx, cancel := context.WithTimeout(e.ctx, time.Minute)
			defer cancel()
			held, done := e.Lease(t)
			e.place(held, t, other, native)
			if _, err := e.store.Put(ctx, "", entries(repo+":2", other, native, 1)...); err != nil {
				t.Error(err)
			}
			done()
			close(hanging.free)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
