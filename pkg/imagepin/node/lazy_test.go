package node

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/imagepin/imagepin/internal/upstream"
)

// TestUnpacksLazily checks which snapshotters get the annotations for lazy fetching, and that those that may use them
// cannot unpack in parallel.
func TestUnpacksLazily(t *testing.T) {
	proxy := map[string]string{upstream.ProxyAddress: "/run/snapshotter.sock"}
	exporting := map[string]string{upstream.ProxyAddress: "/run/snapshotter.sock", upstream.RemoteAnnotations: "true"}
	own := map[string]string{"root": "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs"}
	for _, c := range []struct {
		snapshotter string
		exports     map[string]string
		disabled    bool // disable_snapshot_annotations
		annotated   bool
		parallel    bool
	}{
		{"overlayfs", own, true, false, true},
		{"overlayfs", own, false, true, true},
		{"erofs", nil, false, true, true},
		{"overlayfs", proxy, false, true, false},
		{"overlayfs", proxy, true, false, true},
		{"stargz", exporting, true, true, false},
		{"stargz", exporting, false, true, false},
		{"nydus", proxy, false, true, false},
		{"nydus", proxy, true, false, true},
		{"built-in", nil, false, true, false},
		{"built-in", map[string]string{upstream.RemoteAnnotations: "true"}, true, true, false},
	} {
		sn := Snapshotter{Exports: c.exports, Capabilities: []string{snapshots.RebaseCap}}
		exports, capabilities := sn.unpacks(c.snapshotter, !c.disabled)
		if got := exports[upstream.RemoteAnnotations] == "true"; got != c.annotated {
			t.Errorf("%+v: got annotated %v", c, got)
		}
		if got := slices.Contains(capabilities, snapshots.RebaseCap); got != c.parallel {
			t.Errorf("%+v: got parallel %v", c, got)
		}
		if c.exports != nil && len(c.exports[upstream.RemoteAnnotations]) == 0 && c.annotated && len(exports) != len(c.exports)+1 {
			t.Errorf("%+v: got exports %v", c, exports)
		}
	}
	if len(proxy) != 1 || len(own) != 1 {
		t.Errorf("the snapshotter's exports changed: %v, %v", proxy, own)
	}
}
