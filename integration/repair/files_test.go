package repair

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// truncateAll removes the content of all files in a directory, as a power cut does, and returns how many.
func truncateAll(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		n++
		return os.Truncate(path, 0)
	})
	if err != nil || n == 0 {
		t.Fatalf("truncated %d files in %s: %v", n, dir, err)
	}
	return n
}

// TestDiskFiles removes the content of all files of a snapshot. A deep check finds it, for each snapshotter by itself. While a
// container uses the snapshot, the image is not offered, and a pull does not make it ready; then a repair unpacks it again. An image
// without its layers is unverified.
func TestDiskFiles(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	ref, _ := r.Push("app:v1", testimages.Options{}, testimages.HostPlatform())
	line := testkit.Line(testimages.Options{}, testimages.HostPlatform())
	r.MustPull(ref, "runc")
	r.MustPull(ref, testkit.Second)
	if found := append(r.DeepCheck(false), r.Unverified()...); len(found) > 0 {
		t.Fatalf("a deep check found %v, want nothing", found)
	}
	p := r.MustPod("runc")
	r.WantLine(p, node.ContainerOptions{Image: ref}, line)
	truncateAll(t, r.DirectoryIn(ref, "overlayfs"))
	if found := checkNow(r, false); len(found) > 0 {
		t.Errorf("a check that reads no files found %v, want nothing", found)
	}
	found := r.DeepCheck(true)
	for _, f := range found {
		if f.Repaired || !strings.Contains(f.Problem, "has 0 bytes instead of") || !strings.Contains(f.Subject, "overlayfs") || !strings.Contains(f.Error, "uses it") {
			t.Errorf("finding %s (%s): got repaired %t, repair %q, error %q", f.Subject, f.Problem, f.Repaired, f.Repair, f.Error)
		}
	}
	if len(found) != 2 { // the keys of the tag and of the digest
		t.Errorf("got %d findings, want 2: %v", len(found), found)
	}
	if st := r.MustStatus(ref, "runc"); st != nil {
		t.Errorf("the damaged image is offered: %v", st)
	}
	if _, err := r.Pull(r.Ctx, ref, "runc"); err == nil || !strings.Contains(err.Error(), "ContentDamaged") {
		t.Errorf("a pull: got %v, want ContentDamaged", err)
	}
	r.WantRun(testkit.Second, ref, line)
	r.MustRemovePod(p)
	for _, f := range r.DeepCheck(true) {
		if !f.Repaired || f.Error != "" {
			t.Errorf("finding %s (%s): got repaired %t, repair %q, error %q", f.Subject, f.Problem, f.Repaired, f.Repair, f.Error)
		}
	}
	r.WantRun("runc", ref, line)
	if found := r.DeepCheck(false); len(found) > 0 {
		t.Errorf("a deep check found %v, want nothing", found)
	}

	truncateAll(t, r.DirectoryIn(ref, "native"))
	layer := r.Blobs(ref)["layer"]
	if err := r.Client().ContentStore().Delete(testkit.NSContext(r.Ctx), layer); err != nil {
		t.Fatal(err)
	}
	if found := r.Unverified(); len(found) != 4 || !strings.Contains(found[0].Problem, layer.String()) {
		t.Errorf("without the layer: got unverified %v, want 4 keys", found)
	}
}
