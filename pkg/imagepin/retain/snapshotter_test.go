package retain_test

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
)

// TestFormerSnapshotter retains an image in a snapshotter that no runtime handler uses any more. The lease holds the
// snapshot until the image is retained in another snapshotter and has no key for the former one.
func TestFormerSnapshotter(t *testing.T) {
	e := newEnv(t)
	old := e.image("a", first)
	e.pin("v1", old)
	e.unpacks = func(snapshotter string) bool { return snapshotter == "second" }
	e.restart()
	holds := func(when string, want ...string) {
		t.Helper()
		all, err := e.node.Leases.List(e.ctx)
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: got leases %v, %v", when, all, err)
		}
		held, err := e.node.Leases.ListResources(e.ctx, leases.Lease{ID: all[0].ID})
		if err != nil {
			t.Fatal(err)
		}
		in := make(map[string]bool)
		for _, r := range held {
			in[r.Type] = in[r.Type] || r.ID == old.ChainID.String()
		}
		for _, snapshotter := range []string{"first", "second"} {
			if in["snapshots/"+snapshotter] != slices.Contains(want, snapshotter) {
				t.Errorf("%s: got resources %v, want snapshots in %q", when, held, want)
			}
		}
	}
	holds("before the image is in the other snapshotter", "first")

	now := e.image("a", second)
	if err := e.SyncImage(e.ctx, now); err != nil {
		t.Fatal(err)
	}
	holds("while a key needs the former snapshot", "first", "second")

	e.remove(old)
	released := e.released
	if err := e.SyncImage(e.ctx, now); err != nil {
		t.Fatal(err)
	}
	holds("without a key for the former snapshot", "second")
	if e.released != released+1 {
		t.Errorf("got %d collections, want 1", e.released-released)
	}
	e.restart()
	holds("after a restart", "second")
}
