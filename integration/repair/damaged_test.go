package repair

import (
	"context"
	"strings"
	"testing"
	"time"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestRepairWithoutRegistry repairs an image that has lost its index while the registry is down. The repair says that it has
// failed, and the image stays as damaged, also over a restart: pods do not get it, operators see it, and it comes back when
// the registry does. If an altered file shows only to a deep check, a restart does not believe it either.
func TestRepairWithoutRegistry(t *testing.T) {
	t.Parallel()
	for how, s := range testkit.Damages {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{})
			opts := testimages.Options{}
			ref, _ := r.Push("app:v1", opts, testimages.HostPlatform(), testkit.Foreign)
			id := r.MustPull(ref, "")
			pod := r.MustPod("")
			r.Collect()
			r.Damage(how, r.Blobs(ref)["index"])
			r.Reg.Down()
			args := []string{"check", "--repair"}
			if s.Deep {
				args = append(args, "--deep")
			}
			out, code := r.Operator(args...)
			if code != 1 || !strings.Contains(out, "Not repaired:  the registry cannot be reached") || !strings.Contains(out, " 2 differ, 0 repaired") {
				t.Errorf("imagepin %q: exit code %d\n%s", args, code, out)
			}
			wantDamaged(r, ref, "after the repair")
			r.KillAndRestart(nil)
			wantDamaged(r, ref, "after a restart")
			_, _, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Image: ref})
			if err == nil || !strings.Contains(err.Error(), "ImageNotReady") || !strings.Contains(err.Error(), "is damaged") || strings.Contains(err.Error(), "discard_unpacked_layers") {
				t.Errorf("CreateContainer of a damaged image: got %v", err)
			}
			if err := r.Reg.Up(); err != nil {
				t.Fatal(err)
			}
			// A repair is tried again after at most ten seconds.
			testkit.EventuallyIn(t, time.Minute, "the image is repaired", func(ctx context.Context) (bool, error) {
				img, err := r.ImageStatus(ctx, ref, "")
				return img.GetId() == id, err
			})
			r.Reg.Down()
			r.WantRun("", ref, opts.Line(0))
			r.Eventually("status has no problem", func() bool { _, ok := r.Command("status"); return ok })
			if found := r.DeepCheck(false); len(found) > 0 {
				t.Errorf("a deep check finds %v", found)
			}
		})
	}
}

// wantDamaged checks that the keys of an image are damaged.
func wantDamaged(r *testkit.Rig, ref, when string) {
	r.T.Helper()
	if img := r.MustStatus(ref, "runc"); img != nil {
		r.T.Errorf("%s: ImageStatus returned %v", when, img)
	}
	resp, err := r.Control().Images(r.Ctx, &api.ImagesRequest{RefGlob: ref})
	if err != nil || len(resp.GetKeys()) != 1 || resp.GetKeys()[0].GetState() != "damaged" || resp.GetKeys()[0].GetProblem() == "" {
		r.T.Errorf("%s: got keys %v, %v, want one that is damaged", when, resp, err)
	}
	if out, ok := r.Command("images"); !ok || !strings.Contains(out, "runc (damaged)") {
		r.T.Errorf("%s: imagepin images: got\n%s", when, out)
	}
	if out, code := r.Operator("status"); code != 1 || !strings.Contains(out, "damaged keys: 2") {
		r.T.Errorf("%s: imagepin status: exit code %d\n%s", when, code, out)
	}
	for id, img := range r.ImagesByID() {
		if len(resp.GetKeys()) > 0 && id == resp.GetKeys()[0].GetImageId() && len(img.GetRepoTags())+len(img.GetRepoDigests()) > 0 {
			r.T.Errorf("%s: ListImages lists the image with names: %v", when, img)
		}
	}
}

// TestRemovalOfDamaged removes a damaged image, as kubelet and an operator do. Nothing of it is left.
func TestRemovalOfDamaged(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(r *testkit.Rig, ref, id string){
		"by ID":  func(r *testkit.Rig, _, id string) { r.MustRemove(id, "") },
		"by tag": func(r *testkit.Rig, ref, _ string) { r.MustRemove(ref, "") },
		"imagepin rm": func(r *testkit.Rig, ref, _ string) {
			if out, ok := r.Command("rm", ref); !ok {
				r.T.Errorf("imagepin rm: got\n%s", out)
			}
		},
		"imagepin prune": func(r *testkit.Rig, _, _ string) {
			if out, ok := r.Command("prune", "--yes", "--older-than", "0s"); !ok {
				r.T.Errorf("imagepin prune: got\n%s", out)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{})
			before := r.MustState()
			ref, _ := r.Push("app:v1", testimages.Options{}, testimages.HostPlatform())
			id := r.MustPull(ref, "")
			r.Damage("gone", r.Blobs(ref)["manifest"])
			r.Reg.Down()
			r.KillAndRestart(nil)
			wantDamaged(r, ref, "after a restart")
			remove(r, ref, id)
			r.Eventually("nothing is left", func() bool {
				r.Collect()
				return node.Diff(before, r.MustState()) == ""
			})
		})
	}
}
