package guestpull_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
)

// failing is a snapshotter that fails to commit.
type failing struct {
	snapshots.Snapshotter
	commit error
}

func (f failing) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	if f.commit != nil {
		return f.commit
	}
	return f.Snapshotter.Commit(ctx, name, key, opts...)
}

// TestSnapshotter prepares snapshots of layers, with and without files, and others.
func TestSnapshotter(t *testing.T) {
	inner, err := native.NewSnapshotter(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	of := func(name string) snapshots.Opt {
		return snapshots.WithLabels(map[string]string{upstream.LayerLabel: name, "containerd.io/snapshot/a": "b"})
	}
	sn, ctx := guestpull.Snapshotter(inner), t.Context()
	prepared := func(mounts []mount.Mount, err error) bool { return err == nil && len(mounts) > 0 }

	if _, err := sn.Prepare(ctx, "extract-1", "", of("base")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a layer: got %v, want ErrAlreadyExists", err)
	}
	if _, err := sn.Prepare(ctx, "extract-2", "base", of("top")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a layer on another one: got %v, want ErrAlreadyExists", err)
	}
	if info, err := sn.Stat(ctx, "top"); err != nil || info.Kind != snapshots.KindCommitted || info.Parent != "base" || !guestpull.IsEmpty(info) || info.Labels["containerd.io/snapshot/a"] != "b" {
		t.Errorf("got %+v, %v", info, err)
	}
	if mounts, err := sn.Prepare(ctx, "container", "top"); !prepared(mounts, err) {
		t.Errorf("the snapshot of a container: got %v, %v", mounts, err)
	}
	if mounts, err := sn.Prepare(guestpull.WithFiles(ctx), "extract-3", "", of("files")); !prepared(mounts, err) {
		t.Errorf("a layer with files: got %v, %v", mounts, err)
	}
	if info, err := sn.Stat(ctx, "extract-3"); err != nil || info.Kind != snapshots.KindActive || guestpull.IsEmpty(info) {
		t.Errorf("a layer with files: got %+v, %v", info, err)
	}

	for i, name := range []string{"files", "sandbox"} { // another image has the layer
		if name == "sandbox" {
			if _, err := sn.Stat(guestpull.WithFiles(ctx), name); !errdefs.IsNotFound(err) {
				t.Errorf("a snapshot that does not exist: got %v", err)
			}
		}
		if mounts, err := sn.Prepare(ctx, fmt.Sprintf("extract-again-%d", i), "", of(name)); !prepared(mounts, err) {
			t.Errorf("layer %s that another image needs with files: got %v, %v", name, mounts, err)
		}
	}

	// Another pull has committed the snapshot, or the disk is full: nothing stays.
	full := errors.New("no space left on device")
	for _, failure := range []error{errdefs.ErrAlreadyExists, full} {
		_, err := guestpull.Snapshotter(failing{inner, failure}).Prepare(ctx, "extract-4", "base", of("other"))
		if !errors.Is(err, failure) {
			t.Errorf("got %v, want %v", err, failure)
		}
		if _, err := sn.Stat(ctx, "extract-4"); !errdefs.IsNotFound(err) {
			t.Errorf("%v: the snapshot that is not committed stays: %v", failure, err)
		}
	}
	invalid := func(*snapshots.Info) error { return errdefs.ErrInvalidArgument }
	if _, err := sn.Prepare(ctx, "extract-5", "", invalid); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an invalid option: got %v", err)
	}
}

// TestAnyEmpty looks for a snapshot without files in chains of snapshots.
func TestAnyEmpty(t *testing.T) {
	sn, err := native.NewSnapshotter(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer sn.Close()
	commit := func(name, parent string, opts ...snapshots.Opt) {
		t.Helper()
		if _, err := sn.Prepare(t.Context(), "extract-"+name, parent); err != nil {
			t.Fatal(err)
		}
		if err := sn.Commit(t.Context(), name, "extract-"+name, opts...); err != nil {
			t.Fatal(err)
		}
	}
	empty := snapshots.WithLabels(map[string]string{guestpull.Label: "true"})
	commit("files", "")
	commit("more files", "files")
	commit("empty", "files", empty)
	commit("files on empty", "empty")
	for name, want := range map[string]bool{"files": false, "more files": false, "empty": true, "files on empty": true, "": false} {
		if got, err := guestpull.AnyEmpty(t.Context(), sn, name); got != want || err != nil {
			t.Errorf("%q: got %v, %v, want %v", name, got, err, want)
		}
	}
	if _, err := guestpull.AnyEmpty(t.Context(), sn, "none"); !errdefs.IsNotFound(err) {
		t.Errorf("a snapshot that does not exist: got %v", err)
	}
}
