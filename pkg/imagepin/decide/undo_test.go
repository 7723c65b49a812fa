package decide

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// TestUndoPin moves a pin back and forth. A pin that moves, or is removed, while the registry is asked does not change.
func TestUndoPin(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	undo := func() (pin.Pin, error) {
		held, _, err := e.UndoPin(e.ctx, e.ref, policy.NodeScope, resolve.Credential{})
		return held, err
	}
	_, err := undo()
	wantError(t, err, imagepin.UnknownPin, errdefs.ErrNotFound)
	e.make(t, policy.NodeScope, "old", pin.ByUse, true)
	_, err = undo()
	wantError(t, err, imagepin.NoEarlierDigest, errdefs.ErrFailedPrecondition)
	e.make(t, policy.NodeScope, "new", pin.ByRefresh, true)
	for _, want := range []string{"old", "new"} {
		held, err := undo()
		noError(t, err)
		wantEqual(t, "digest", version(held.Root.Digest), want)
		wantEqual(t, "retention", held.Retain, true)
	}

	e.registry.during = func() { e.make(t, policy.NodeScope, "old", pin.ByRefresh, true) }
	if _, err = undo(); !errors.Is(err, pin.ErrChanged) || !errdefs.IsAborted(err) {
		t.Errorf("undo of a pin that moves meanwhile: got %v", err)
	}
	wantEqual(t, "digest", e.pinned(policy.NodeScope), "old")
	e.registry.during = func() {
		_, err := e.pins.Remove(e.ctx, e.id(policy.NodeScope))
		noError(t, err)
		e.registry.during = nil
	}
	if _, err = undo(); !errors.Is(err, pin.ErrChanged) {
		t.Errorf("undo of a pin that is removed meanwhile: got %v", err)
	}
	wantEqual(t, "pin", e.pinned(policy.NodeScope), "")
}
