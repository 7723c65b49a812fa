package pins

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// running returns the containers of the node by pod, and their image volumes by pod and path. The registry must get no request.
func running(r *testkit.Rig) map[string]*api.Container {
	r.T.Helper()
	testkit.AwaitIdle(r.T, r.Reg)
	r.Reg.Reset()
	resp, err := r.Control().Containers(r.Ctx, &api.ContainersRequest{})
	if err != nil {
		r.T.Fatal(err)
	}
	r.WantNoRequests("imagepin ps")
	all := make(map[string]*api.Container)
	for _, c := range resp.GetContainers() {
		all[c.GetPod()+c.GetVolume()] = c
	}
	return all
}

// want is what a container is to run, and what its pin is to mean, in a scope. scope is empty if there is no pin.
type want struct{ digest, scope, pinned string }

// wantRunning compares the containers of the node, also with what imagepin ps prints. A container that differs does so since its pin
// was made, or since it was created.
func wantRunning(r *testkit.Rig, when string, wants map[string]want) {
	r.T.Helper()
	got := running(r)
	if len(got) != len(wants) {
		r.T.Errorf("%s: got %d containers and volumes, want %d: %v", when, len(got), len(wants), got)
	}
	var differ []string
	for name, w := range wants {
		c := got[name]
		if c.GetDigest() != w.digest || c.GetPin().GetScope() != w.scope || c.GetPin().GetRoot().GetDigest() != w.pinned || c.GetError() != "" {
			r.T.Errorf("%s: %s: got %v, want %v", when, name, c, w)
		}
		if c.GetDiffers() != (w.scope != "" && w.digest != w.pinned) {
			r.T.Errorf("%s: %s: got differs %t", when, name, c.GetDiffers())
		}
		if !c.GetDiffers() {
			continue
		}
		differ = append(differ, name)
		since := c.GetPin().GetMadeAt().AsTime()
		if created := c.GetCreatedAt().AsTime(); created.After(since) {
			since = created
		}
		if !c.GetSince().AsTime().Equal(since) {
			r.T.Errorf("%s: %s: got since %s, want %s", when, name, c.GetSince().AsTime(), since)
		}
	}
	code := 0
	if len(differ) > 0 {
		code = 10
	}
	var printed struct {
		Containers []struct{ Pod, Volume string }
	}
	if err := json.Unmarshal([]byte(r.WantOperator(code, []string{"ps", "--differs", "-o", "json"})), &printed); err != nil {
		r.T.Fatal(err)
	}
	var listed []string
	for _, c := range printed.Containers {
		listed = append(listed, c.Pod+c.Volume)
	}
	slices.Sort(differ)
	slices.Sort(listed)
	if !slices.Equal(listed, differ) {
		r.T.Errorf("%s: imagepin ps --differs lists %q, want %q", when, listed, differ)
	}
	r.WantOperator(code, []string{"ps"}, "POD", "PINNED TO")
}

// TestContainersDiffer checks which containers run another digest than their pin means: their own images and image volumes, after a
// refresh, a pin of an operator, a new container, an undo, a restart and a lock.
func TestContainersDiffer(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	const scope = "workload/shop/pod-template-hash=r1"
	app, model, web, tool := r.Reg.Ref("node/app:v1"), r.Reg.Ref("node/model:v1"), r.Reg.Ref("workload/web:v1"), r.Reg.Ref("free/tool:v1")
	app1, model1, web1, tool1 := r.Version("node/app:v1", "app 1"), r.Version("node/model:v1", "model 1"), r.Version("workload/web:v1", "web 1"), r.Version("free/tool:v1", "tool 1")
	wantRunning(r, "on an empty node", map[string]want{})

	id := r.MustPull(model, "native")
	named := func(name string) node.PodOptions { return node.PodOptions{Namespace: "shop", Name: name} }
	withVolume := node.ContainerOptions{Name: "app", Mounts: []*cri.Mount{{ContainerPath: "/model", Readonly: true, Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: model}}}}
	on := named("app")
	on.Handler = "native"
	r.WantVersion(node.KubeletPod{PodOptions: on, Image: app, Gate: true, Container: withVolume}, "app 1")
	revised := revision("shop", "pod-template-hash", "r1")
	revised.Name = "web"
	r.WantVersion(node.KubeletPod{PodOptions: revised, Image: web}, "web 1")
	r.WantVersion(node.KubeletPod{PodOptions: named("tool"), Image: tool}, "tool 1")
	wants := map[string]want{
		"app": {app1, "node", app1}, "app/model": {model1, "node", model1}, "web": {web1, scope, web1}, "tool": {tool1, "", ""},
	}
	wantRunning(r, "after the start", wants)
	if c := running(r)["app"]; c.GetHandler() != "native" || c.GetRef() != app || c.GetNamespace() != "shop" {
		t.Errorf("got %v", c)
	}

	app2, model2, tool2 := r.Version("node/app:v1", "app 2"), r.Version("node/model:v1", "model 2"), r.Version("free/tool:v1", "tool 2")
	before := time.Now().Add(-time.Second) // times of pins are to the second
	if _, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: app}); err != nil {
		t.Fatal(err)
	}
	wants["app"] = want{app1, "node", app2}
	wantRunning(r, "after a refresh", wants)
	if since := running(r)["app"].GetSince().AsTime(); since.Before(before) || since.After(time.Now()) {
		t.Errorf("after a refresh: differs since %s, want after %s", since, before)
	}
	if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: model, Digest: model2}); err != nil {
		t.Fatal(err)
	}
	wants["app/model"] = want{model1, "node", model2}
	wantRunning(r, "after a pin of an operator, without a pull", wants)

	r.WantVersion(node.KubeletPod{PodOptions: named("new"), Image: app}, "app 2")
	wants["new"] = want{app2, "node", app2}
	wantRunning(r, "with a new container", wants)
	r.KillAndRestart(nil)
	wantRunning(r, "after a restart", wants)
	out := r.WantOperator(10, []string{"ps", "--pod", "shop/app", "--no-trunc", "-o", "wide"}, app1, app2, model1, model2, "app:/model", "native")
	if strings.Contains(out, "new") || strings.Count(out, "\n") != 3 {
		t.Errorf("imagepin ps --pod shop/app printed\n%s", out)
	}
	r.WantOperator(0, []string{"ps", "--ref", web}, "shop/web")
	if out := r.WantOperator(0, []string{"ps", "--handler", "runc", "-q"}); strings.Count(out, "\n") != 3 {
		t.Errorf("imagepin ps --handler runc -q printed\n%s", out)
	}

	if _, err := r.Control().UndoPin(r.Ctx, &api.UndoPinRequest{Ref: app}); err != nil {
		t.Fatal(err)
	}
	wants["app"], wants["new"] = want{app1, "node", app1}, want{app2, "node", app1}
	wantRunning(r, "after an undo", wants)

	r.MustApply(r.WriteLock("lock.yaml", map[string]string{tool: tool2}))
	wants["tool"] = want{tool1, "lock", tool2}
	wantRunning(r, "with a lock", wants)
}

// TestContainerOfRemovedImage checks that a container of an image that was removed, and of whose digest the node knows nothing, is
// compared by its image ID once the pinned image is on the node.
func TestContainerOfRemovedImage(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	app := r.Reg.Ref("node/app:v1")
	r.Version("node/app:v1", "one")
	pod := r.WantVersion(node.KubeletPod{PodOptions: node.PodOptions{Namespace: "shop", Name: "app"}, Image: app}, "one")
	r.MustRemove(pod.ImageID, "")
	two := r.Version("node/app:v1", "two")
	if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: app, Digest: two}); err != nil {
		t.Fatal(err)
	}
	if c := running(r)["app"]; c.GetDiffers() || c.GetDigest() != "" || c.GetImageId() != pod.ImageID || c.GetPin().GetRoot().GetDigest() != two {
		t.Errorf("the pinned image is not on the node: got %v", c)
	}
	r.WantOperator(0, []string{"ps"}, "unknown")
	r.MustPull(app, "")
	if c := running(r)["app"]; !c.GetDiffers() || c.GetDigest() != "" {
		t.Errorf("the pinned image is on the node: got %v", c)
	}
}
