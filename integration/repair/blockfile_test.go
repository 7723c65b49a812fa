package repair

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
)

// blockfile returns the configuration of the snapshotter with an empty file system of that many MiB.
func blockfile(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scratch")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(testkit.Context(t), "mkfs.ext4", "-q", "-O", "^has_journal", path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	return fmt.Sprintf(`
[plugins."io.containerd.snapshotter.v1.blockfile"]
scratch_file = %q
fs_type = "ext4"
mount_options = []
`, path)
}

// TestBlockfile runs an image on overlayfs and on a snapshotter that has a file system in a file for each snapshot. Both are durable. A
// deep check finds files that a power cut has emptied, and the repair unpacks them again.
func TestBlockfile(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: blockfile(t, 8), Handlers: []node.Handler{{Name: testkit.Second, Snapshotter: "blockfile"}}})
	opts := images.Options{}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform())
	marked := map[string]bool{}
	for _, handler := range []string{"", testkit.Second} {
		r.MustPull(tag, handler)
	}
	for _, img := range r.MustState().Images {
		for _, value := range img.Labels {
			for _, snapshotter := range []string{"overlayfs", "blockfile"} {
				if strings.Contains(value, `"`+snapshotter+`"`) && strings.Contains(value, `"durable":"`+durable.BootID()+`"`) {
					marked[snapshotter] = true
				}
			}
		}
	}
	if len(marked) != 2 {
		t.Errorf("durable are %v, want both", marked)
	}
	if found := r.DeepCheck(false); len(found) > 0 {
		t.Errorf("a deep check finds %v", found)
	}
	truncateBlockfiles(r)
	for _, repair := range []bool{false, true} {
		found := r.DeepCheck(repair)
		if len(found) != 2 { // the keys of the tag and of the digest
			t.Errorf("a deep check finds %v, want the damage", found)
		}
		for _, f := range found {
			if f.Repaired != repair {
				t.Errorf("%s: repaired: %t, error %q", f.Subject, f.Repaired, f.Error)
			}
		}
	}
	for _, handler := range []string{"", testkit.Second} {
		r.WantRunIn(r.MustPod(handler), tag, opts.Line(0))
	}
}

// TestBlockfileMountedElsewhere pulls an image while each file system that containerd mounts has another mount, as it has in the mount
// namespace of a process that starts. Unmounting then writes nothing, but each layer has the files of the layers below.
func TestBlockfileMountedElsewhere(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: blockfile(t, 32), Handlers: []node.Handler{{Name: testkit.Second, Snapshotter: "blockfile"}}})
	opts := images.Options{Random: []images.Random{{Files: 3000, Size: 6 << 20}, {Size: 1}}}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform())
	for held := 0; held == 0; {
		done := make(chan error)
		go func() {
			_, err := r.Pull(r.Ctx, tag, testkit.Second)
			done <- err
		}()
		var err error
		if held, err = holdBlockfiles(t, r, done); err != nil {
			t.Fatal(err)
		}
		if held == 0 {
			r.MustRemove(tag, testkit.Second)
		}
	}
	if found := r.DeepCheck(false); len(found) > 0 {
		t.Errorf("a deep check finds %v", found)
	}
	r.WantRunIn(r.MustPod(testkit.Second), tag, opts.Line(0))
}

// holdBlockfiles adds a mount to each file system that containerd mounts from a snapshot, until a pull is done. The mounts end with
// the test. It returns how many there are, and the error of the pull.
func holdBlockfiles(t *testing.T, r *testkit.Rig, done <-chan error) (int, error) {
	t.Helper()
	held := map[string]bool{}
	for {
		select {
		case err := <-done:
			return len(slices.DeleteFunc(slices.Collect(maps.Values(held)), func(is bool) bool { return !is })), err
		default:
		}
		mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("ext4"))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mounts {
			backing, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(m.Source), "loop/backing_file"))
			file := strings.TrimSpace(string(backing))
			if err != nil || held[file] || !strings.HasPrefix(file, r.Root()+"/") {
				continue // another one, or it is already unmounted
			}
			dir := t.TempDir()
			if unix.Mount(m.Mountpoint, dir, "", unix.MS_BIND, "") != nil {
				continue // it is already unmounted
			}
			t.Cleanup(func() {
				if err := unix.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			})
			var fs unix.Statfs_t
			if err := unix.Statfs(dir, &fs); err != nil {
				t.Fatal(err)
			}
			held[file] = fs.Type == unix.EXT4_SUPER_MAGIC // and not the directory without the mount
		}
	}
}

// truncateBlockfiles truncates all files in all snapshots.
func truncateBlockfiles(r *testkit.Rig) {
	r.T.Helper()
	all, err := filepath.Glob(filepath.Join(r.Root(), "root", "io.containerd.snapshotter.v1.blockfile", "snapshots", "*"))
	if err != nil || len(all) == 0 {
		r.T.Fatalf("snapshots: %q, %v", all, err)
	}
	for _, path := range all {
		mounts := []mount.Mount{{Type: "ext4", Source: path, Options: []string{"rw", "loop"}}}
		err := mount.WithTempMount(r.Ctx, mounts, func(dir string) error {
			r.TruncateAll(dir)
			return nil
		})
		if err != nil {
			r.T.Fatal(err)
		}
	}
}
