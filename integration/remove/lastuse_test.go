package remove

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/offline"
	"github.com/imagepin/imagepin/integration/testkit"
)

// timeInLabel is a time in the label of a key.
var timeInLabel = regexp.MustCompile(`"(ready|used)":"[^"]*"`)

// age kills the node, makes all of its images three days older, and starts it again with changed options.
func age(r *testkit.Rig, change func(*node.Options)) {
	r.T.Helper()
	if err := r.Kill9(); err != nil {
		r.T.Fatal(err)
	}
	if err := ageRecords(r.Ctx, r.Path("root")); err != nil {
		r.T.Fatal(err)
	}
	if err := r.Restart(r.Ctx, change); err != nil {
		r.T.Fatal(err)
	}
}

// ageRecords makes the images of a stopped node older.
func ageRecords(ctx context.Context, dir string) (err error) {
	root, err := offline.Open(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	old := time.Now().Add(-72 * time.Hour).UTC().Format(time.RFC3339)
	return root.AtOnce(ctx, func(ctx context.Context) error {
		all, err := root.Images.List(ctx)
		if err != nil {
			return err
		}
		for _, img := range all {
			for name, value := range img.Labels {
				if strings.HasPrefix(name, "io.imagepin.key.") {
					img.Labels[name] = timeInLabel.ReplaceAllString(value, `"$1":"`+old+`"`)
				}
			}
			if _, err := root.Images.Update(ctx, img, "labels"); err != nil {
				return err
			}
		}
		return nil
	})
}

// usedPod runs a pod with a container of an image, and an image volume.
func usedPod(r *testkit.Rig, image, volume string) *node.Pod {
	r.T.Helper()
	id := r.MustPull(volume, "")
	pod := r.MustPod("")
	if _, _, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Image: image, Mounts: []*cri.Mount{{
		ContainerPath: "/volume", Readonly: true, Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: volume},
	}}}); err != nil {
		r.T.Fatal(err)
	}
	return pod
}

// wantPruned checks what a dry run of "imagepin prune --older-than 24h" would remove.
func wantPruned(r *testkit.Rig, when string, all []string, pruned ...string) {
	r.T.Helper()
	out, _ := r.Operator("prune", "--older-than", "24h")
	for _, ref := range all {
		is, should := strings.Contains(out, "Would remove "+ref+" "), false
		for _, p := range pruned {
			should = should || p == ref
		}
		if is != should {
			r.T.Errorf("%s: prune would remove %s: %t, want %t:\n%s", when, ref, is, should, out)
		}
	}
}

// TestPruneCountsFromLastUse checks that --older-than counts from the removal of the last container or image volume, and from a pull
// that had nothing to do, also after a restart. Another use within the hour writes nothing.
func TestPruneCountsFromLastUse(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	var all []string
	for _, name := range []string{"app:v1", "model:v1", "pulled:v1", "idle:v1", "started:v1"} {
		r.Version(name, name)
		r.MustPull(r.Reg.Ref(name), "")
		all = append(all, r.Reg.Ref(name))
	}
	app, model, pulled, idle, started := all[0], all[1], all[2], all[3], all[4]
	wantPruned(r, "after the pulls", all)
	pod := usedPod(r, app, model)
	age(r, nil)
	wantPruned(r, "while a container runs", all, pulled, idle, started)

	r.MustPull(pulled, "")
	r.MustRemovePod(pod)
	second := r.MustPod("")
	c, _, err := r.RunContainer(r.Ctx, second, node.ContainerOptions{Image: started})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(r.Ctx); err != nil {
		t.Fatal(err)
	}
	wantPruned(r, "after the last use", all, idle)
	r.KillAndRestart(nil)
	wantPruned(r, "after a restart", all, idle)

	before := r.MustState()
	c, _, err = r.RunContainer(r.Ctx, second, node.ContainerOptions{Image: started})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(r.Ctx); err != nil {
		t.Fatal(err)
	}
	r.WantState("after another use within the hour", before)

	want(r, 0, "prune --older-than 24h --yes", "Removed "+idle, "Removed 1 image")
	want(r, 1, "prune --older-than 0s", "Would remove "+app, "Would remove "+model, "Would remove "+pulled, "Would remove "+started)
	want(r, 0, "check")
}

// TestPruneAfterKilledRemoval kills the node while it records the end of the use of a pod's images. The pod is still there then, and its
// removal records it.
func TestPruneAfterKilledRemoval(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"store.write", "store.commit"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{})
			r.Version("app:v1", "app")
			r.Version("model:v1", "model")
			app, model := r.Reg.Ref("app:v1"), r.Reg.Ref("model:v1")
			r.MustPull(app, "")
			pod := usedPod(r, app, model)
			age(r, func(o *node.Options) {
				o.Binary, o.Env = node.Ours+"-failpoints", []string{"IMAGEPIN_FAILPOINT=" + point}
			})
			if err := r.RemovePod(r.Ctx, pod); err == nil {
				t.Fatal("the node was not killed")
			}
			r.KillAndRestart(func(o *node.Options) { o.Binary, o.Env = node.Ours, nil })
			r.MustRemovePod(pod)
			wantPruned(r, "after the removal", []string{app, model})
			want(r, 1, "prune --older-than 0s", "Would remove "+app, "Would remove "+model)
			want(r, 0, "check")
		})
	}
}
