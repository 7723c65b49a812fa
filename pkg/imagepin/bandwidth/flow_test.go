package bandwidth

import (
	"errors"
	"testing"
)

func TestFlowWaits(t *testing.T) {
	if f := Of(t.Context()); f != nil {
		t.Errorf("a context without a flow has %v", f)
	}
	f := &Flow{}
	if Of(With(t.Context(), f)) != f {
		t.Error("the context has another flow")
	}
	want := func(w Wait) {
		t.Helper()
		if got := f.Waits(); got != w {
			t.Errorf("waits for %q, want %q", got, w)
		}
	}
	want("")
	locked := errors.New("locked")
	err := f.WaitForPull(func() error {
		want(OtherPull)
		f.Receive(func() { want(Registry) })
		want(OtherPull)
		return locked
	})
	if want(""); !errors.Is(err, locked) {
		t.Errorf("got %v, want %v", err, locked)
	}
	// Requests without a pull.
	var none *Flow
	none.Receive(func() { err = nil })
	if err != nil || none.WaitForPull(func() error { return locked }) == nil {
		t.Error("a nil flow does not run the function")
	}
}
