package pin

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// stuck is a call of containerd's that does not return until it is let go.
type stuck struct{ reached, free chan struct{} }

func newStuck() stuck { return stuck{make(chan struct{}), make(chan struct{})} }

func (s stuck) wait() {
	close(s.reached)
	<-s.free
}

type stuckLeases struct {
	leases.Manager
	stuck
}

func (l stuckLeases) Delete(ctx context.Context, lease leases.Lease, opts ...leases.DeleteOpt) error {
	l.wait()
	return l.Manager.Delete(ctx, lease, opts...)
}

type stuckImages struct {
	images.Store
	stuck
}

func (i stuckImages) Create(ctx context.Context, img images.Image) (images.Image, error) {
	i.wait()
	return i.Store.Create(ctx, img)
}

// TestRetainerLockHonoursContext has a lease's deletion hang, as it does with a
// snapshotter that hangs: who waits for it gives up with its context, and what is
// asked of memory is answered.
func TestRetainerLockHonoursContext(t *testing.T) {
	n := ctdtest.New(t, "first")
	r := newRetainer(t, n, 2500)
	ctx, drop := n.Lease(t)
	defer drop()
	a, b := put(ctx, t, n, "a", first), put(ctx, t, n, "b", first)
	if err := r.Retain(n.Context(t), a); err != nil {
		t.Fatal(err)
	}
	hangs := newStuck()
	r.Leases = stuckLeases{n.Leases, hangs}
	released := make(chan error, 1)
	go func() { released <- r.Release(n.Context(t), a.Root.Digest) }()
	<-hangs.reached
	gone, cancel := context.WithCancel(n.Context(t))
	cancel()
	if err := r.Retain(gone, b); !errors.Is(err, context.Canceled) {
		t.Errorf("Retain: %v", err)
	}
	if err := r.Release(gone, b.Root.Digest); !errors.Is(err, context.Canceled) {
		t.Errorf("Release: %v", err)
	}
	release, err := r.Reserve(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	release()
	wantEqual(t, "bytes", r.Bytes(), 1000)
	wantEqual(t, "holds", []bool{r.Holds(a), r.Holds(b), r.HoldsRoot(a.Root.Digest)}, []bool{true, false, true})
	close(hangs.free)
	if err := <-released; err != nil {
		t.Error(err)
	}
	if err := r.Retain(n.Context(t), b); err != nil {
		t.Error(err)
	}
}

// TestPinLockHonoursContext has the write of a pin hang.
func TestPinLockHonoursContext(t *testing.T) {
	e := newEnv(t, 0)
	hangs := newStuck()
	e.Images = stuckImages{e.Images, hangs}
	id, other := ID{Scope: "node", Ref: ref}, ID{Scope: "node", Ref: "registry.example/team/other:1"}
	made := make(chan error, 1)
	go func() {
		_, err := e.Make(e.ctx, id, root("one"), ByUse, false)
		made <- err
	}()
	<-hangs.reached
	gone, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, err := e.Make(gone, id, root("two"), ByUse, false); !errors.Is(err, context.Canceled) {
		t.Errorf("Make: %v", err)
	}
	if _, err := e.Store.Remove(gone, id); !errors.Is(err, context.Canceled) {
		t.Errorf("Remove: %v", err)
	}
	var known *imagepin.Error
	if _, err := e.Store.Remove(e.ctx, other); !errors.As(err, &known) || known.Name != imagepin.UnknownPin {
		t.Errorf("another pin waits for it: %v", err)
	}
	if _, ok := e.Get(id); ok || len(e.List()) != 0 {
		t.Error("a pin that is not written is there")
	}
	close(hangs.free)
	if err := <-made; err != nil {
		t.Error(err)
	}
}
