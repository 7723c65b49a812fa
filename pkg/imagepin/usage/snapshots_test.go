package usage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// slow is a snapshotter with a chain of snapshots that takes some time for each call.
type slow struct {
	snapshots.Snapshotter
	wait  func(name string)
	usage error
}

func (s slow) Walk(ctx context.Context, fn snapshots.WalkFunc, _ ...string) error {
	for name, parent := range map[string]string{"a": "", "b": "a", "c": "b"} {
		s.wait("walk")
		if err := fn(ctx, snapshots.Info{Kind: snapshots.KindCommitted, Name: name, Parent: parent}); err != nil {
			return err
		}
	}
	return fn(ctx, snapshots.Info{Kind: snapshots.KindActive, Name: "container", Parent: "c"})
}

func (s slow) Usage(_ context.Context, name string) (snapshots.Usage, error) {
	s.wait(name)
	if s.usage != nil {
		return snapshots.Usage{}, s.usage
	}
	return snapshots.Usage{Size: int64(name[0])}, nil
}

// A snapshotter may take long for all snapshots, but not for one.
func TestSlowSnapshotters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hang := func(at string) func(string) {
			return func(name string) {
				if name == at {
					<-release // it ignores its context
				}
			}
		}
		all := map[string]snapshots.Snapshotter{
			"slow":    slow{wait: func(string) { time.Sleep(silence - time.Millisecond) }},
			"hangs":   slow{wait: hang("walk")},
			"stops":   slow{wait: hang("b")},
			"broken":  slow{wait: func(string) {}, usage: errors.New("disk error")},
			"removes": slow{wait: func(string) {}, usage: errdefs.ErrNotFound},
			"panics":  slow{wait: func(string) { panic("bug") }},
		}
		m := New(Config{Snapshotter: func(name string) snapshots.Snapshotter { return all[name] }})
		n := newNeed()
		for _, name := range []string{"slow", "hangs", "stops", "broken", "removes", "panics", "missing"} {
			n.snapshots[snapshot{name, "c"}] = true
			n.snapshots[snapshot{name, "b"}] = true
		}
		answers := m.askSnapshotters(t.Context(), []need{n})
		close(release)
		for name, want := range map[string]string{"hangs": "no answer within 2s", "stops": "no answer within 2s", "broken": "disk error", "missing": "it is not loaded"} {
			if err := answers[name].err; err == nil || err.Error() != want {
				t.Errorf("%s: got %v, want %s", name, err, want)
			}
		}
		if answers["panics"].err == nil {
			t.Error("a panic is no error")
		}
		if a := answers["slow"]; a.err != nil || len(a.sizes) != 3 || a.sizes["a"] != 'a' {
			t.Errorf("got %+v", a)
		}
		if a := answers["removes"]; a.err != nil || a.sizes["c"] != 0 {
			t.Errorf("got %+v", a)
		}
	})
}
