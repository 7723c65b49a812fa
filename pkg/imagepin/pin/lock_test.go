package pin

import (
	"context"
	"errors"
	"testing"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestPinLockHonorsContext checks that calls that wait for a blocked write return when their context is canceled.
func TestPinLockHonorsContext(t *testing.T) {
	e := newEnv(t, 0)
	reached, free := make(chan struct{}), make(chan struct{})
	e.config.Images = ctdtest.Images{Store: e.config.Images, Before: ctdtest.On("Create", func(string) error {
		close(reached)
		<-free
		return nil
	})}
	id, other := ID{Scope: "node", Ref: ref}, ID{Scope: "node", Ref: "registry.example/team/other:1"}
	made := make(chan error, 1)
	go func() {
		_, err := e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, false)
		made <- err
	}()
	<-reached
	canceled, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, err := e.MakeForNamespace(canceled, "", id, root("two"), ByUse, false); !errors.Is(err, context.Canceled) {
		t.Errorf("Make: got %v, want context.Canceled", err)
	}
	if _, err := e.Store.Remove(canceled, id); !errors.Is(err, context.Canceled) {
		t.Errorf("Remove: got %v, want context.Canceled", err)
	}
	var known *imagepin.Error
	if _, err := e.Store.Remove(e.ctx, other); !errors.As(err, &known) || known.Reason != imagepin.UnknownPin {
		t.Errorf("Remove of another pin: got %v, want reason UnknownPin", err)
	}
	if _, ok := e.Get(id); ok || len(e.List()) != 0 {
		t.Error("a pin is visible before it is written")
	}
	close(free)
	if err := <-made; err != nil {
		t.Error(err)
	}
}
