package node

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestForGuests names the snapshotters that get no files: those of guests alone, unless they fetch lazily. If other handlers share one, it
// is named in a warning.
func TestForGuests(t *testing.T) {
	proxy := Snapshotter{Exports: map[string]string{upstream.ProxyAddress: "/run/snapshotter.sock"}}
	for _, disabled := range []bool{false, true} {
		a := &active{
			Setup: Setup{
				Settings:     config.Settings{GuestPull: map[string]bool{"guest": true, "shares": true, "lazy": true, "arm": true, "unknown": true}},
				Snapshotters: map[string]Snapshotter{"overlayfs": {}, "native": {}, "nydus": proxy},
			},
			runtimes: ctdtest.Runtimes(t, "overlayfs", runtimeplatform.Handler{Name: "guest", Snapshotter: "native"},
				runtimeplatform.Handler{Name: "arm", Snapshotter: "native", Platform: "linux/arm64"},
				runtimeplatform.Handler{Name: "shares", Snapshotter: "overlayfs"},
				runtimeplatform.Handler{Name: "lazy", Snapshotter: "nydus"}, runtimeplatform.Handler{Name: "other", Snapshotter: "overlayfs"}),
		}
		a.CRI.Images.DisableSnapshotAnnotations = disabled
		want := []string{"native"}
		if disabled { // the proxy gets no annotations with which it could fetch
			want = append(want, "nydus")
		}
		only, unpacked := a.forGuests()
		if got := slices.Sorted(maps.Keys(only)); !slices.Equal(got, want) {
			t.Errorf("disable_snapshot_annotations = %v: got %q, want %q", disabled, got, want)
		}
		if len(unpacked) != 1 || !strings.Contains(unpacked[0], "guest_pull (shares) ") || !strings.Contains(unpacked[0], "overlayfs") || !strings.Contains(unpacked[0], "(other, runc)") {
			t.Errorf("disable_snapshot_annotations = %v: got warnings %q", disabled, unpacked)
		}
	}
}
