package node

import (
	"context"
	"errors"
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
		n := &Node{runtimes: handlers, Config: Config{CRI: config.CRI{Transfer: &transfer}, Containerd: Containerd{
			Applier: named("service"), Differ: c.differ, Snapshots: func(string) snapshots.Snapshotter { return nil },
		}}}
		appliers := n.appliers()
		for _, sn := range handlers.Snapshotters() {
			if got := n.unpackPlatform(sn, appliers[sn]).Applier; got != c.want[sn] {
				t.Errorf("%s: %v unpacks in %s, not %v", name, got, sn, c.want[sn])
			}
		}
	}
}
