package kubectl

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/testkit"
)

const restartedAt = "kubectl.kubernetes.io/restartedAt"

// A restart makes a new ReplicaSet. The ImagePin of the old one keeps its digest, so that an undo returns to it.
func TestRestartDeployment(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	image := "registry.example.com/" + tag(t)
	before := images.push(t, tag(t))
	original := deployment(t, ns, "web", image, 1)
	pod := run(t, ns, 1, before)[0]
	pin := api.claim(t, pod, image, before)
	refresh := []string{"refresh", "deployment/web", "--restart", "--insecure-registry"}

	if out := kubectl.must(t, ns, refresh...); out != "deployment.apps/web not restarted, no digest has changed\n" {
		t.Errorf("got %q", out)
	}
	after := images.push(t, tag(t))
	changed := fmt.Sprintf("%s has changed from %s to %s.\n", image, short(before), short(after))
	for strategy, suffix := range map[string]string{"client": "(dry run)", "server": "(server dry run)"} {
		r := kubectl.in(t, ns, append(refresh, "--dry-run="+strategy)...)
		if r.code != 0 || r.out != "deployment.apps/web restarted "+suffix+"\n" || r.err != changed {
			t.Errorf("exit code %d, %q, %q", r.code, r.out, r.err)
		}
	}
	if at := restarted(t, ns); at != "" {
		t.Fatalf("restarted at %s without a changed digest", at)
	}
	if out := kubectl.must(t, ns, refresh...); out != "deployment.apps/web restarted\n" {
		t.Errorf("got %q", out)
	}
	if restarted(t, ns) == "" {
		t.Fatal("not restarted")
	}
	if p := api.pins(t, ns)[pin.Name]; p.Spec.Digest != before {
		t.Errorf("the ImagePin of the old ReplicaSet was moved to %s", p.Spec.Digest)
	}
	// The pod of the new ReplicaSet resolves the tag again. So there is nothing left to restart, also not because of an image
	// that only kubectl debug has used, and that the registry does not have.
	replacement := second(t, ns, pod, after)
	api.claim(t, replacement, image, after)
	api.claim(t, replacement, "registry.example.com/debug:v1", digestB)
	if out := kubectl.must(t, ns, refresh...); out != "deployment.apps/web not restarted, no digest has changed\n" {
		t.Errorf("got %q", out)
	}
	// What kubectl rollout undo does: the old template again, and thus the old ReplicaSet.
	undo := map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": nil}, "spec": original.Spec.Template.Spec}}}
	api.must(t, "PATCH", appsPath(ns, "deployments", "web"), undo, nil)
	wantTable(t, kubectl.must(t, ns, "explain", "deployment/web", "-o", "jsonpath={.owner.name} {.containers[0].pin.digest}"),
		ownerOf(pod).Name+" "+before)
}

func TestRestartStatefulSet(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	image := "registry.example.com/" + tag(t)
	images.push(t, tag(t))
	statefulSet(t, ns, "db", image, 1)
	pod := run(t, ns, 1, digestA)[0]
	pin := api.claim(t, pod, image, digestA)
	if out := kubectl.must(t, ns, "refresh", "sts/db", "--restart", "--insecure-registry"); out != "statefulset.apps/db restarted\n" {
		t.Errorf("got %q", out)
	}
	testkit.EventuallyIn(t, timeout, "the StatefulSet has another revision", func(ctx context.Context) (bool, error) {
		var s apps.StatefulSet
		err := api.Do(ctx, "GET", appsPath(ns, "statefulsets", "db"), nil, &s)
		return s.Status.UpdateRevision != ownerOf(pod).Revision, err
	})
	if p := api.pins(t, ns)[pin.Name]; p.Spec.Digest != digestA {
		t.Errorf("the ImagePin of the old revision was moved to %s", p.Spec.Digest)
	}
	// The new revision has no ImagePins before its first pod starts.
	kubectl.in(t, ns, "refresh", "sts/db", "--restart", "--insecure-registry").wantError(t, "has no ImagePins to compare")
	// What kubectl rollout undo does: the old template again, and thus the old revision.
	undo := map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": nil}}}}
	api.must(t, "PATCH", appsPath(ns, "statefulsets", "db"), undo, nil)
	testkit.EventuallyIn(t, timeout, "the ImagePin of the old revision applies", func(context.Context) (bool, error) {
		return kubectl.in(t, ns, "explain", "sts/db", "-o", "jsonpath={.containers[0].pin.digest}").out == digestA, nil
	})
}

func TestRestartErrors(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 1)
	pod := run(t, ns, 1, digestA)[0]
	pin := api.claim(t, pod, image, digestA)
	other, replicas := api.namespace(t), int32(1)
	d := &apps.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: apps.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template(image)}}
	d.Spec.Template.Spec.Containers[0].ImagePullPolicy = core.PullIfNotPresent
	api.must(t, "POST", appsPath(other, "deployments", ""), d, nil)
	api.claim(t, run(t, other, 1, digestA)[0], image, digestA)
	kubectl.in(t, other, "refresh", "deployment/web", "--restart").wantError(t, "web has the pull policy IfNotPresent", "--new-revision=resolve")
	kubectl.in(t, other, "refresh", "deployment/web", "--restart", "--new-revision=resolve", "--insecure-registry").wantError(t, "cannot resolve "+image)
	kubectl.in(t, other, "refresh", "deployment/web", "--restart", "--new-revision=registry").wantError(t, `--new-revision must be "node" or "resolve", not "registry"`)
	kubectl.in(t, other, "refresh", "deployment/web", "--new-revision=resolve").wantError(t, "--new-revision needs --restart")
	kubectl.in(t, ns, "refresh", pin.Name, "--restart").wantError(t, "--restart needs a Deployment, StatefulSet or DaemonSet")
	kubectl.in(t, ns, "refresh", "rs/"+ownerOf(pod).Name, "--restart").wantError(t, `replicasets.apps "`+ownerOf(pod).Name+`" cannot be restarted`)
	api.must(t, "PATCH", appsPath(ns, "deployments", "web"), map[string]any{"spec": map[string]any{"paused": true}}, nil)
	kubectl.in(t, ns, "refresh", "deployment/web", "--restart").wantError(t, `deployments.apps "web" can't restart paused deployment`)
}

// A workload that cannot be compared does not prevent the restart of others.
func TestRestartSeveral(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	image := "registry.example.com/" + tag(t)
	images.push(t, tag(t))
	deployment(t, ns, "web", image, 1)
	api.claim(t, run(t, ns, 1, digestA)[0], image, digestA)
	deployment(t, ns, "idle", image+"-idle", 0)
	testkit.EventuallyIn(t, timeout, "the Deployment idle has a current revision", func(context.Context) (bool, error) {
		return kubectl.in(t, ns, "explain", "deployment/idle").code == 0, nil
	})
	r := kubectl.in(t, ns, "refresh", "deployment/idle", "deployment/none", "deployment/web", "--restart", "--insecure-registry")
	if r.code != 1 || r.out != "deployment.apps/web restarted\n" || restarted(t, ns) == "" {
		t.Errorf("exit code %d, %q, want an error, and that web is restarted", r.code, r.out)
	}
	for _, want := range []string{"deployment/idle: ReplicaSet/idle-", "has no ImagePins to compare", `deployment/none: deployments.apps "none" not found`} {
		if !strings.Contains(r.err, want) {
			t.Errorf("error %q does not have %q", r.err, want)
		}
	}
}

// restarted returns the annotation of the Deployment web with the time of its restart.
func restarted(t *testing.T, ns string) string {
	t.Helper()
	var d apps.Deployment
	api.must(t, "GET", appsPath(ns, "deployments", "web"), nil, &d)
	return d.Spec.Template.Annotations[restartedAt]
}
