package repair

import (
	"os"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
)

// TestDiskFiles removes the content of all files of a snapshot. A deep check finds it, for each snapshotter by itself. While a container
// runs on the snapshot, the image is not offered, and a repair, a pull and CreateContainer fail and name it. When it has exited, the next
// CreateContainer replaces the files below it, and the image is durable. An image whose directory is gone is repaired when its exited
// containers are removed. An image without its layers is unverified.
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
	running := r.WantLine(p, node.ContainerOptions{Image: ref, Name: "running"}, line)
	r.TruncateAll(r.DirectoryIn(ref, "overlayfs"))
	if found := checkNow(r, false); len(found) > 0 {
		t.Errorf("a check that reads no files found %v, want nothing", found)
	}
	inUse := "on overlayfs: files of its snapshot are damaged, and it is in use by container running of pod default/" + p.Config.Metadata.Name
	found := r.DeepCheck(true)
	for _, f := range found {
		if f.Repaired || !strings.Contains(f.Problem, "has 0 bytes instead of") || !strings.Contains(f.Subject, "overlayfs") || !strings.Contains(f.Error, inUse) {
			t.Errorf("finding %s (%s): got repaired %t, repair %q, error %q", f.Subject, f.Problem, f.Repaired, f.Repair, f.Error)
		}
	}
	if len(found) != 2 { // the keys of the tag and of the digest
		t.Errorf("got %d findings, want 2: %v", len(found), found)
	}
	if st := r.MustStatus(ref, "runc"); st != nil {
		t.Errorf("the damaged image is offered: %v", st)
	}
	if _, err := r.Pull(r.Ctx, ref, "runc"); err == nil || !strings.Contains(err.Error(), "SnapshotInUse: "+ref) || !strings.Contains(err.Error(), inUse) {
		t.Errorf("a pull: got %v, want SnapshotInUse", err)
	}
	if _, _, err := r.RunContainer(r.Ctx, p, node.ContainerOptions{Image: ref, Name: "refused"}); err == nil || !strings.Contains(err.Error(), "SnapshotInUse: "+ref) || !strings.Contains(err.Error(), inUse) {
		t.Errorf("CreateContainer: got %v, want SnapshotInUse", err)
	}
	onNative := r.MustPod(testkit.Second)
	stop(r, r.WantLine(onNative, node.ContainerOptions{Image: ref, Name: "on-native"}, line))

	stop(r, running)
	r.WantLine(p, node.ContainerOptions{Image: ref, Name: "next"}, line)
	if status, err := running.Status(r.Ctx); err != nil || status.State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("the exited container: got %v, %v", status, err)
	}
	if found := r.DeepCheck(false); len(found) > 0 {
		t.Errorf("a deep check found %v, want nothing", found)
	}
	wantDurable(r, ref)

	if err := os.RemoveAll(r.DirectoryIn(ref, "native")); err != nil {
		t.Fatal(err)
	}
	if out, code := r.Operator("check", "--deep", "--repair"); code != 1 || !strings.Contains(out, "uses it") || strings.Contains(out, "Removed:") {
		t.Errorf("imagepin check --deep --repair: exit code %d\n%s", code, out)
	}
	out, code := r.Operator("check", "--deep", "--repair", "--remove-exited")
	if code != 0 || !strings.Contains(out, "Removed:   container on-native of pod default/"+onNative.Config.Metadata.Name) || strings.Count(out, "Removed:") != 1 {
		t.Errorf("imagepin check --deep --repair --remove-exited: exit code %d\n%s", code, out)
	}
	r.WantRun(testkit.Second, ref, line)

	r.TruncateAll(r.DirectoryIn(ref, "native"))
	layer := r.Blobs(ref)["layer"]
	if err := r.Client().ContentStore().Delete(testkit.NSContext(r.Ctx), layer); err != nil {
		t.Fatal(err)
	}
	if found := r.Unverified(); len(found) != 4 || !strings.Contains(found[0].Problem, layer.String()) {
		t.Errorf("without the layer: got unverified %v, want 4 keys", found)
	}
}

// stop stops a container, and leaves it.
func stop(r *testkit.Rig, c *node.Container) {
	r.T.Helper()
	if _, err := r.Runtime().StopContainer(r.Ctx, &cri.StopContainerRequest{ContainerId: c.ID, Timeout: 5}); err != nil {
		r.T.Fatal(err)
	}
}

// wantDurable checks that all keys of a reference that are ready have the mark of the running boot.
func wantDurable(r *testkit.Rig, ref string) {
	r.T.Helper()
	all, err := r.Client().ImageService().List(testkit.NSContext(r.Ctx))
	if err != nil {
		r.T.Fatal(err)
	}
	n := 0
	for _, img := range all {
		for name, value := range img.Labels {
			if !strings.HasPrefix(name, "io.imagepin.key.") || !strings.Contains(value, `"ref":"`+ref+`"`) {
				continue
			}
			if n++; !strings.Contains(value, `"durable":"`+durable.BootID()+`"`) {
				r.T.Errorf("label %s of %s has no mark: %s", name, img.Name, value)
			}
		}
	}
	if n == 0 {
		r.T.Errorf("%s has no keys", ref)
	}
}
