package health

import (
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"

	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
)

// TestRemoveLabels removes the label of damage, and keeps the one that says that a snapshot has no files.
func TestRemoveLabels(t *testing.T) {
	sn, err := native.NewSnapshotter(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer sn.Close()
	ctx := t.Context()
	all := map[string]string{damageLabel: "a file is missing", guestpull.Label: "true", "containerd.io/snapshot/a": "b"}
	if _, err := sn.Prepare(ctx, "extract", ""); err != nil {
		t.Fatal(err)
	}
	if err := sn.Commit(ctx, "layer", "extract", snapshots.WithLabels(all)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dry  bool
		want int
	}{{true, 1}, {false, 1}, {false, 0}} {
		if n, err := RemoveLabels(ctx, sn, c.dry); n != c.want || err != nil {
			t.Errorf("dry %v: got %d, %v, want %d", c.dry, n, err, c.want)
		}
	}
	info, err := sn.Stat(ctx, "layer")
	if err != nil || info.Labels[damageLabel] != "" || !guestpull.IsEmpty(info) || info.Labels["containerd.io/snapshot/a"] != "b" {
		t.Errorf("got %v, %v", info.Labels, err)
	}
}
