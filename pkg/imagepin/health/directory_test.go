package health

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
)

// TestDirectories checks which paths of the mounts of containerd's snapshotters are directories of snapshots.
func TestDirectories(t *testing.T) {
	for name, c := range map[string]struct {
		mounts []mount.Mount
		want   []string
	}{
		"overlayfs": {
			[]mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"index=off", "lowerdir=/s/2/fs:/s/1/fs"}}},
			[]string{"/s/2/fs", "/s/1/fs"},
		},
		"one layer, native": {[]mount.Mount{{Type: "bind", Source: "/s/1/fs", Options: []string{"ro", "rbind"}}}, []string{"/s/1/fs"}},
		"erofs":             {[]mount.Mount{{Type: "erofs", Source: "/s/1/layer.erofs", Options: []string{"ro", "loop"}}}, []string{"/s/1/layer.erofs"}},
		"mount manager":     {[]mount.Mount{{Type: "format/overlay", Source: "overlay", Options: []string{"lowerdir={{ overlay 0 1 }}"}}}, nil},
		"btrfs":             {[]mount.Mount{{Type: "btrfs", Source: "/dev/sdb1", Options: []string{"subvolid=257"}}}, nil},
		"devmapper":         {[]mount.Mount{{Type: "ext4", Source: "/dev/mapper/pool-snap-7", Options: []string{"ro"}}}, nil},
		"zfs":               {[]mount.Mount{{Type: "zfs", Source: "tank/containerd/7"}}, nil},
	} {
		if got := directories(c.mounts); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
