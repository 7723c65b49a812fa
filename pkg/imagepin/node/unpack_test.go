package node

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// namedApplier is an applier with a name.
type namedApplier string

func (namedApplier) Apply(context.Context, ocispec.Descriptor, []mount.Mount, ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, errors.New("not called")
}

// TestAppliers checks that the transfer service's differ for a snapshotter unpacks in it. containerd's diff service
// replaces a differ that does not exist or cannot be selected.
func TestAppliers(t *testing.T) {
	handlers := ctdtest.Runtimes(t, "overlayfs",
		runtimeplatform.Handler{Name: "vm", Snapshotter: "erofs"}, runtimeplatform.Handler{Name: "other", Snapshotter: "native"})
	transfer := config.DefaultTransfer()
	transfer.Unpack = []config.Unpack{
		{Platform: "linux/amd64", Snapshotter: "overlayfs", Differ: "walking"},
		{Platform: "linux/amd64", Snapshotter: "erofs", Differ: "erofs"},
		{Platform: "linux/amd64", Snapshotter: "native", Differ: "missing"},
	}
	for name, c := range map[string]struct {
		differ func(string) (diff.Applier, error)
		want   map[string]diff.Applier
	}{
		"plugin": {func(name string) (diff.Applier, error) {
			if name == "missing" {
				return nil, errors.New("no such differ")
			}
			return namedApplier(name), nil
		}, map[string]diff.Applier{"overlayfs": namedApplier("walking"), "erofs": namedApplier("erofs"), "native": namedApplier("service")}},
		"separate process": {nil, map[string]diff.Applier{"overlayfs": namedApplier("service"), "erofs": namedApplier("service"), "native": namedApplier("service")}},
	} {
		n := &Node{containerd: Containerd{
			Applier: namedApplier("service"), Differ: c.differ, Snapshots: func(string) snapshots.Snapshotter { return nil },
		}}
		a := &active{runtimes: handlers, Setup: Setup{CRI: config.CRI{Transfer: &transfer}}}
		appliers := n.appliers(a)
		for _, sn := range handlers.Snapshotters() {
			if got := n.unpackPlatform(a, sn, appliers[sn]).Applier; got != download.Decompressing(nil, c.want[sn]) {
				t.Errorf("%s: %v unpacks in %s, want %v", name, got, sn, c.want[sn])
			}
		}
	}
}

// TestWalking checks in which snapshotters layers are unpacked while they are downloaded: where containerd's walking
// differ would unpack them.
func TestWalking(t *testing.T) {
	own := download.NewApplier(nil, nil)
	for _, c := range []struct {
		differ      string
		onlyWalking bool // the diff service has no other differ
		syncFS      bool
		walking     bool
		options     int
	}{
		{"", true, false, true, 0},
		{"", true, true, true, 1},
		{"", false, true, false, 0},
		{"walking", false, true, true, 0},
		{"erofs", true, true, false, 0},
	} {
		n := &Node{containerd: Containerd{
			Applier: namedApplier("service"), Snapshots: func(string) snapshots.Snapshotter { return nil },
			Walking: &Walking{Applier: own, Default: c.onlyWalking, SyncFS: c.syncFS},
		}}
		by := applier{differ: c.differ}
		if c.differ != "" {
			by.Applier = namedApplier(c.differ)
		}
		p := n.unpackPlatform(&active{}, "overlayfs", by)
		if walking := p.Applier == diff.Applier(own); walking != c.walking || len(p.ApplyOpts) != c.options {
			t.Errorf("%+v: unpacked by %v with %d options", c, p.Applier, len(p.ApplyOpts))
		}
	}
}

// TestUnpackInParallel checks that layers are unpacked in parallel only if their whiteouts are kept: in overlayfs,
// whose mounts containerd's unpacker changes, and by differs other than containerd's default differ.
func TestUnpackInParallel(t *testing.T) {
	rebase := []string{snapshots.RebaseCap}
	for _, c := range []struct {
		snapshotter, differ string
		capabilities        []string
		exports             map[string]string
		parallel            bool
	}{
		{"overlayfs", "", rebase, nil, true},
		{"overlayfs", "walking", rebase, nil, true},
		{"overlayfs", "", nil, nil, false},
		{"overlayfs", "", rebase, map[string]string{upstream.RemoteAnnotations: "true"}, false},
		{"erofs", "erofs", rebase, nil, true},
		{"erofs", "erofs", nil, nil, false},
		{"erofs", "walking", rebase, nil, false},
		{"erofs", "", rebase, nil, false}, // the diff service may choose the walking differ
	} {
		n := &Node{containerd: Containerd{
			Applier: namedApplier("service"), Snapshots: func(string) snapshots.Snapshotter { return nil },
		}}
		a := &active{Setup: Setup{
			CRI:          config.CRI{Images: config.Images{DisableSnapshotAnnotations: true}},
			Snapshotters: map[string]Snapshotter{c.snapshotter: {Exports: c.exports, Capabilities: c.capabilities}},
		}}
		by := applier{differ: c.differ}
		if c.differ != "" {
			by.Applier = namedApplier(c.differ)
		}
		if got := slices.Contains(n.unpackPlatform(a, c.snapshotter, by).SnapshotterCapabilities, snapshots.RebaseCap); got != c.parallel {
			t.Errorf("%+v: got parallel %v, want %v", c, got, c.parallel)
		}
	}
}
