package node

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
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

// TestUnpackedForGuests names the handlers whose guests pull images themselves, although the node unpacks them.
func TestUnpackedForGuests(t *testing.T) {
	proxy := Snapshotter{Exports: map[string]string{upstream.ProxyAddress: "/run/snapshotter.sock"}}
	for _, disabled := range []bool{false, true} {
		a := &active{
			Setup: Setup{
				Settings:     config.Settings{GuestPull: map[string]bool{"guest": true, "lazy": true, "unknown": true}},
				Snapshotters: map[string]Snapshotter{"overlayfs": {}, "nydus": proxy},
			},
			runtimes: ctdtest.Runtimes(t, "overlayfs", runtimeplatform.Handler{Name: "guest", Snapshotter: "overlayfs"},
				runtimeplatform.Handler{Name: "lazy", Snapshotter: "nydus"}, runtimeplatform.Handler{Name: "other", Snapshotter: "overlayfs"}),
		}
		a.CRI.Images.DisableSnapshotAnnotations = disabled
		want := []string{"guest"}
		if disabled {
			want = append(want, "lazy")
		}
		if got := a.unpackedForGuests(); !slices.Equal(got, want) {
			t.Errorf("disable_snapshot_annotations = %v: got %q, want %q", disabled, got, want)
		}
	}
}
