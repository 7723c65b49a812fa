package repair

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// parts are the kinds of blobs of an image.
var parts = []string{"index", "manifest", "configuration", "layer"}

func checkNow(r *testkit.Rig, repair bool) []*api.Finding {
	r.T.Helper()
	resp, err := r.Control().Check(r.Ctx, &api.CheckRequest{Repair: repair})
	if err != nil {
		r.T.Fatal(err)
	}
	return resp.Findings
}

// TestDisk damages the file of each kind of blob in each way. A check finds the damage, or a deep check if only reading
// the file shows it. A pull for another handler and a repair fetch the blob again. After a restart, so does
// imagepin itself for an index, manifest or configuration that is missing or truncated.
func TestDisk(t *testing.T) {
	t.Parallel()
	for how, s := range testkit.Damages {
		for _, part := range parts {
			t.Run(part+" "+how, func(t *testing.T) {
				t.Parallel()
				r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
				pods := []*node.Pod{r.MustPod("runc"), r.MustPod(testkit.Second)}
				version := strings.ReplaceAll(part+" "+how, " ", "-")
				ref, _ := r.Push("app:v1", testimages.Options{Version: version}, testimages.HostPlatform(), testkit.Foreign)
				id := r.MustPull(ref, "runc")
				r.Collect()

				r.Damage(how, r.Blobs(ref)[part])
				wantFound(r, part, s.Deep)
				if got := r.MustPull(ref, testkit.Second); got != id {
					t.Errorf("a pull for another handler returned %s, want %s", got, id)
				}
				r.WantUndamaged(ref, version, pods)

				r.Damage(how, r.Blobs(ref)[part])
				found := wantFound(r, part, s.Deep)
				if s.Deep {
					found = r.DeepCheck(true)
				} else {
					found = checkNow(r, true)
				}
				for _, f := range found {
					if !f.Repaired || f.Error != "" {
						t.Errorf("finding %s (%s): got repaired %t, repair %q, error %q", f.Subject, f.Problem, f.Repaired, f.Repair, f.Error)
					}
				}
				r.WantUndamaged(ref, version, pods)

				r.Damage(how, r.Blobs(ref)[part])
				r.KillAndRestart(nil)
				if part != "layer" && !s.Deep {
					r.Eventually("the damaged image is repaired", func() bool {
						return r.MustStatus(ref, "runc").GetId() == id && r.MustStatus(ref, testkit.Second).GetId() == id && len(checkNow(r, false)) == 0
					})
				}
				if s.Deep {
					r.DeepCheck(true)
				}
				if got := r.MustPull(ref, "runc"); got != id {
					t.Errorf("a pull after the restart returned %s, want %s", got, id)
				}
				if part == "layer" {
					checkNow(r, true)
				}
				r.WantUndamaged(ref, version, pods)
			})
		}
	}
}

// wantFound fails the test unless a check, or only a deep check, finds the damage of a part. It returns the findings.
func wantFound(r *testkit.Rig, part string, deep bool) []*api.Finding {
	r.T.Helper()
	found := checkNow(r, false)
	if deep {
		if len(found) > 0 {
			r.T.Errorf("a check that reads no files found %v", found)
		}
		found = r.DeepCheck(false)
	}
	if len(found) == 0 {
		r.T.Fatalf("no check found the damage of the %s", part)
	}
	for _, f := range found {
		if !strings.Contains(f.Problem, part) || f.Repair == "" {
			r.T.Errorf("%s: got problem %q, repair %q, want a problem of the %s", f.Subject, f.Problem, f.Repair, part)
		}
	}
	return found
}

// TestDiskOffline damages an image while its registry is unreachable. A pull fails with an error that names the damage,
// a repair fails and the image still runs. When the registry is back, the repair succeeds.
func TestDiskOffline(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	pods := []*node.Pod{r.MustPod("runc"), r.MustPod(testkit.Second)}
	ref, _ := r.Push("app:v1", testimages.Options{}, testimages.HostPlatform(), testkit.Foreign)
	r.MustPull(ref, "runc")
	r.Collect()
	layer := r.Blobs(ref)["layer"]
	r.Damage("gone", layer)
	r.Reg.Down()
	_, err := r.Pull(r.Ctx, ref, testkit.Second)
	if err == nil || strings.Contains(err.Error(), "push it again") || !strings.Contains(err.Error(), layer.String()) || !strings.Contains(err.Error(), "ContentDamaged") {
		t.Errorf("a pull without the registry: got %v, want ContentDamaged of layer %s and no hint to push it again", err, layer)
	}
	for _, f := range checkNow(r, true) {
		if f.Repaired || f.Error == "" {
			t.Errorf("finding %s (%s): got repaired %t, repair %q, error %q", f.Subject, f.Problem, f.Repaired, f.Repair, f.Error)
		}
	}
	r.WantRunIn(pods[0], ref, testkit.Line(testimages.Options{}, testimages.HostPlatform()))
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	if found := checkNow(r, true); len(found) != 1 || !found[0].Repaired {
		t.Errorf("a repair with the registry: got %v, want one finding that is repaired", found)
	}
	r.WantUndamaged(ref, "", pods)
}

// TestDiskSandboxImage damages the configuration of the sandbox image. Pods start again after a repair, and after a
// restart.
func TestDiskSandboxImage(t *testing.T) {
	t.Parallel()
	for how := range testkit.Damages {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{})
			pause := r.Options().SandboxImage
			r.MustRemovePod(r.MustPod("runc"))
			r.Damage(how, r.Blobs(pause)["configuration"])
			for _, f := range r.DeepCheck(true) {
				if !f.Repaired || f.Error != "" {
					t.Errorf("finding %s (%s): got repaired %t, repair %q, error %q", f.Subject, f.Problem, f.Repaired, f.Repair, f.Error)
				}
			}
			r.MustRemovePod(r.MustPod("runc"))
			if testkit.Damages[how].Deep {
				return
			}
			r.Damage(how, r.Blobs(pause)["configuration"])
			r.KillAndRestart(nil)
			r.MustRemovePod(r.MustPod("runc"))
			if found := r.DeepCheck(false); len(found) > 0 {
				t.Errorf("a deep check found %v, want nothing", found)
			}
		})
	}
}

// TestDiskSnapshot removes the directory of a snapshot. A deep check finds it, and a repair unpacks the snapshot again,
// but not while a container uses it.
func TestDiskSnapshot(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref, _ := r.Push("app:v1", testimages.Options{}, testimages.HostPlatform())
	r.MustPull(ref, "runc")
	p := r.MustPod("runc")
	r.WantLine(p, node.ContainerOptions{Image: ref}, testkit.Line(testimages.Options{}, testimages.HostPlatform()))
	dir := r.SnapshotDirectory(ref)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if found := checkNow(r, false); len(found) > 0 {
		t.Errorf("a check that reads no directories found %v, want nothing", found)
	}
	found := r.DeepCheck(true)
	for _, f := range found {
		if f.Repaired || !strings.Contains(f.Problem, dir) || !strings.Contains(f.Error, "uses it") {
			t.Errorf("finding %s (%s): got repaired %t, repair %q, error %q", f.Subject, f.Problem, f.Repaired, f.Repair, f.Error)
		}
	}
	if len(found) != 2 { // the keys of the tag and of the digest
		t.Errorf("got %d findings, want 2: %v", len(found), found)
	}
	r.MustRemovePod(p)
	for _, f := range r.DeepCheck(true) {
		if !f.Repaired || f.Error != "" {
			t.Errorf("finding %s (%s): got repaired %t, repair %q, error %q", f.Subject, f.Problem, f.Repaired, f.Repair, f.Error)
		}
	}
	r.WantRun("runc", ref, testkit.Line(testimages.Options{}, testimages.HostPlatform()))
	if found := r.DeepCheck(false); len(found) > 0 {
		t.Errorf("a deep check found %v, want nothing", found)
	}
}

// TestDiskRetained checks that a deep check finds and repairs damaged blobs that only a pin retains.
func TestDiskRetained(t *testing.T) {
	t.Parallel()
	for how := range testkit.Damages {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{Extra: testkit.RetainRules})
			ref, _ := r.Push("pinned/app:v1", testimages.Options{}, testimages.HostPlatform())
			r.MustPull(ref, "runc")
			blobs := r.Blobs(ref)
			r.MustRemove(ref, "runc")
			r.Collect()
			for _, part := range []string{"manifest", "configuration", "layer"} {
				r.Damage(how, blobs[part])
				found := r.DeepCheck(true)
				if len(found) != 1 || !found[0].Repaired || found[0].Subject != blobs[part].String() || !strings.Contains(found[0].Problem, "a pin retains it") {
					t.Errorf("%s: got findings %v, want one that is repaired", part, found)
				}
			}
			if found := r.DeepCheck(false); len(found) > 0 {
				t.Errorf("a deep check found %v, want nothing", found)
			}
		})
	}
}

// TestDeepCheckInterrupted checks that a cancelled deep check leaves no lease and no damage.
func TestDeepCheckInterrupted(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref, _ := r.Push("app:v1", testimages.Options{}, testimages.HostPlatform())
	r.MustPull(ref, "runc")
	ctx, cancel := context.WithCancel(r.Ctx)
	defer cancel()
	stream, err := r.Control().DeepCheck(ctx, &api.DeepCheckRequest{BytesPerSecond: 1})
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil || m.Result != nil || m.Progress.GetBytesTotal() == 0 {
		t.Fatalf("got first message %v and error %v, want progress", m, err)
	}
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	if ctx.Err() == nil || !strings.Contains(fmt.Sprint(err), "cancel") {
		t.Errorf("got %v after the cancellation, want a cancellation error", err)
	}
	r.Eventually("no lease is left", func() bool {
		held, err := r.Client().LeasesService().List(testkit.NSContext(r.Ctx))
		return err == nil && len(held) == 0
	})
	if found := r.DeepCheck(false); len(found) > 0 {
		t.Errorf("a deep check found %v, want nothing", found)
	}
}
