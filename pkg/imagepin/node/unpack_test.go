package node

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// named is an applier that is told apart by its name.
type named string

func (named) Apply(context.Context, ocispec.Descriptor, []mount.Mount, ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, errors.New("not called")
}

// The differ that containerd's transfer service names for a snapshotter unpacks there, and its diff service everywhere else: also
// where there is no such differ, and where none can be chosen.
func TestAppliers(t *testing.T) {
	handlers, err := runtimeplatform.New("runc", []runtimeplatform.Handler{
		{Name: "runc", Snapshotter: "overlayfs"}, {Name: "vm", Snapshotter: "erofs"}, {Name: "other", Snapshotter: "native"},
	}, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		t.Fatal(err)
	}
	transfer := config.DefaultTransfer()
	transfer.Unpack = []config.Unpack{
		{Platform: "linux/amd64", Snapshotter: "overlayfs", Differ: "walking"},
		{Platform: "linux/amd64", Snapshotter: "erofs", Differ: "erofs"},
		{Platform: "linux/amd64", Snapshotter: "native", Differ: "gone"},
	}
	for name, c := range map[string]struct {
		differ func(string) (diff.Applier, error)
		want   map[string]diff.Applier
	}{
		"in containerd": {func(name string) (diff.Applier, error) {
			if name == "gone" {
				return nil, errors.New("no such differ")
			}
			return named(name), nil
		}, map[string]diff.Applier{"overlayfs": named("walking"), "erofs": named("erofs"), "native": named("service")}},
		"beside it": {nil, map[string]diff.Applier{"overlayfs": named("service"), "erofs": named("service"), "native": named("service")}},
	} {
		n := &Node{containerd: Containerd{
			Applier: named("service"), Differ: c.differ, Snapshots: func(string) snapshots.Snapshotter { return nil },
		}}
		a := &active{runtimes: handlers, Setup: Setup{CRI: config.CRI{Transfer: &transfer}}}
		appliers := n.appliers(a)
		for _, sn := range handlers.Snapshotters() {
			if got := n.unpackPlatform(a, sn, appliers[sn]).Applier; got != c.want[sn] {
				t.Errorf("%s: %v unpacks in %s, not %v", name, got, sn, c.want[sn])
			}
		}
	}
}

// Layers are unpacked in parallel only where whiteouts survive it: in overlayfs, whose mounts containerd's unpacker changes for it, and
// by a differ that is not containerd's default one.
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
		{"overlayfs", "", rebase, map[string]string{remoteAnnotations: "true"}, false},
		{"erofs", "erofs", rebase, nil, true},
		{"erofs", "erofs", nil, nil, false},
		{"erofs", "walking", rebase, nil, false},
		{"erofs", "", rebase, nil, false}, // the diff service may choose the walking one
	} {
		n := &Node{containerd: Containerd{
			Applier: named("service"), Snapshots: func(string) snapshots.Snapshotter { return nil },
		}}
		a := &active{Setup: Setup{
			CRI:          config.CRI{Images: config.Images{DisableSnapshotAnnotations: true}},
			Snapshotters: map[string]Snapshotter{c.snapshotter: {Exports: c.exports, Capabilities: c.capabilities}},
		}}
		by := applier{differ: c.differ}
		if c.differ != "" {
			by.Applier = named(c.differ)
		}
		if got := slices.Contains(n.unpackPlatform(a, c.snapshotter, by).SnapshotterCapabilities, snapshots.RebaseCap); got != c.parallel {
			t.Errorf("%+v: in parallel: %v", c, got)
		}
	}
}
