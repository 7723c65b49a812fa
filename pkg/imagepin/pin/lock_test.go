package pin

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// stuck is a containerd call that blocks until free is closed.
type stuck struct{ reached, free chan struct{} }

func newStuck() stuck { return stuck{make(chan struct{}), make(chan struct{})} }

func (s stuck) wait() {
	close(s.reached)
	<-s.free
}

type stuckImages struct {
	images.Store
	stuck
}

func (i stuckImages) Create(ctx context.Context, img images.Image) (images.Image, error) {
	i.wait()
	return i.Store.Create(ctx, img)
}

// TestPinLockHonorsContext blocks the write of a pin.
func TestPinLockHonorsContext(t *testing.T) {
	e := newEnv(t, 0)
	hangs := newStuck()
	e.config.Images = stuckImages{e.config.Images, hangs}
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
	if _, err := e.Store.Remove(e.ctx, other); !errors.As(err, &known) || known.Reason != imagepin.UnknownPin {
		t.Errorf("another pin waits for the lock: %v", err)
	}
	if _, ok := e.Get(id); ok || len(e.List()) != 0 {
		t.Error("a pin is visible before it is written")
	}
	close(hangs.free)
	if err := <-made; err != nil {
		t.Error(err)
	}
}
