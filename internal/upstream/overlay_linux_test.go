package upstream

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
)

// TestLowerDirs has the mounts of the real overlayfs snapshotter on two layers.
func TestLowerDirs(t *testing.T) {
	dir := t.TempDir()
	sn, err := overlay.NewSnapshotter(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sn.Close() })
	ctx := namespaces.WithNamespace(t.Context(), "test")
	parent := ""
	for _, layer := range []string{"a", "b"} {
		_, err := sn.Prepare(ctx, "unpack "+layer, parent)
		if err := errors.Join(err, sn.Commit(ctx, layer, "unpack "+layer)); err != nil {
			t.Fatal(err)
		}
		parent = layer
	}
	mounts, err := sn.View(ctx, "view", parent)
	if err != nil || len(mounts) != 1 {
		t.Fatal(mounts, err)
	}
	want := []string{filepath.Join(dir, SnapshotsDir, "2", "fs"), filepath.Join(dir, SnapshotsDir, "1", "fs")}
	if got := LowerDirs(mounts[0].Options); !slices.Equal(got, want) {
		t.Errorf("got %v of %v, want %v", got, mounts, want)
	}
}
