package pins

import (
	"context"
	"strings"
	"testing"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPinOfANewerRelease checks a pin that a newer release has written. Nothing overwrites it or runs another digest,
// its content stays retained, and a check reports it. It applies again when it is readable. An operator can remove it.
func TestPinOfANewerRelease(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	old := r.Version("kept/app:v1", "old")
	ref := r.Reg.Ref("kept/app:v1")
	r.MustPull(ref, "")
	name := "node/" + ref
	ctx := namespaces.WithNamespace(r.Ctx, "imagepin")
	record := func() ctdimages.Image {
		t.Helper()
		img, err := r.Client().ImageService().Get(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	version := func(v string) {
		t.Helper()
		img := ctdimages.Image{Name: name, Labels: map[string]string{"io.imagepin.pin.version": v, "io.imagepin.pin.later": "fact"}}
		if _, err := r.Client().ImageService().Update(ctx, img, "labels.io.imagepin.pin.version", "labels.io.imagepin.pin.later"); err != nil {
			t.Fatal(err)
		}
	}
	version("2")
	r.KillAndRestart(nil)
	before := record()
	r.Version("kept/app:v1", "moved")
	r.Reg.Reset()
	newer := testkit.Failure{Name: "PinOfNewerRelease", Code: codes.Unimplemented}
	_, err := r.Pull(r.Ctx, ref, "")
	newer.Check(t, err, ref, testkit.TargetOf(""))
	r.WantRequests("a pull of a tag with an unreadable pin")
	if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: ref, Digest: old}); err == nil || !strings.Contains(err.Error(), "PinOfNewerRelease") {
		t.Errorf("SetPin: got error %v, want PinOfNewerRelease", err)
	}
	pod := r.MustPod("")
	if _, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: ref}); err == nil || !strings.Contains(err.Error(), "PinOfNewerRelease") {
		t.Errorf("CreateContainer: got error %v, want PinOfNewerRelease", err)
	}
	r.MustRemovePod(pod)
	if after := record(); after.Target.Digest != before.Target.Digest || after.Labels["io.imagepin.pin.later"] != "fact" || after.UpdatedAt != before.UpdatedAt {
		t.Errorf("the record changed from %v to %v", before, after)
	}
	if n := len(retained(t, r)); n != 1 {
		t.Errorf("got %d leases for the retained content, want 1", n)
	}
	out, ok := r.Command("check")
	if ok || !strings.Contains(out, name) || !strings.Contains(out, "version 2 is newer than 1") || !strings.Contains(out, "1 differ, 0 repaired") {
		t.Errorf("check: got\n%s", out)
	}

	version("1")
	r.KillAndRestart(nil)
	if out, ok := r.Command("check"); !ok {
		t.Errorf("check: got findings:\n%s", out)
	}
	r.MustRemovePod(r.WantVersion(node.KubeletPod{Image: ref}, "old").Pod)

	version("2")
	r.KillAndRestart(nil)
	if out, ok := r.Command("pin", "rm", ref); !ok {
		t.Errorf("pin rm failed:\n%s", out)
	}
	if n := len(retained(t, r)); n != 0 {
		t.Errorf("got %d leases after the removal, want 0", n)
	}
	r.MustRemovePod(r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "moved").Pod)
	testkit.Eventually(t, "the log reports that the pin is removed", func(context.Context) (bool, error) {
		return strings.Contains(r.Logs(), "pin is removed"), nil
	})
}
