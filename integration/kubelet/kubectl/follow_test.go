package kubectl

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/testkit"
)

// follow runs refresh --annotated --restart in a namespace.
var follow = []string{"refresh", "--annotated", "--restart", "--insecure-registry"}

// annotate makes a workload follow its tags.
func annotate(t *testing.T, ns, resource, name string) {
	t.Helper()
	api.must(t, "PATCH", appsPath(ns, resource, name), map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{"imagepin.io/follow-tags": "true"}},
	}, nil)
}

// wantFollow fails the test unless a run prints this, and words in messages.
func wantFollow(t *testing.T, ns, out string, words ...string) {
	t.Helper()
	r := kubectl.in(t, ns, follow...)
	if r.code != 0 || r.out != out {
		t.Errorf("exit code %d, %q, want 0 and %q", r.code, r.out, out)
	}
	for _, w := range words {
		if !strings.Contains(r.err, w) {
			t.Errorf("the messages %q do not have %q", r.err, w)
		}
	}
}

// allowFollower creates the permissions of the CronJob in contrib/kubernetes/follow.
func allowFollower(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile("../../../contrib/kubernetes/follow/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, kind := range []string{"clusterroles", "clusterrolebindings"} {
			if err := api.Do(context.Background(), "DELETE", "/apis/rbac.authorization.k8s.io/v1/"+kind+"/imagepin-follow", nil, nil); err != nil {
				t.Error(err)
			}
		}
	})
	for document := range strings.SplitSeq(string(b), "---\n") {
		if strings.Contains(document, "kind: ServiceAccount\nmetadata") {
			continue // it needs no object, because it is impersonated
		}
		if err := api.Install(testkit.Context(t), strings.NewReader(document)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFollow restarts the Deployments with the annotation when their tag moves, and only once for each digest.
func TestFollow(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	image := "registry.example.com/" + tag(t)
	one := images.push(t, tag(t))
	deployment(t, ns, "web", image, 1)
	pod := run(t, ns, 1, one)[0]
	api.claim(t, pod, image, one)
	const unchanged, again = "deployment.apps/web not restarted, no digest has changed\n", "deployment.apps/web restarted\n"

	images.push(t, tag(t))
	wantFollow(t, ns, "", `No workloads with the annotation imagepin.io/follow-tags: "true" found.`)
	one = images.push(t, tag(t))
	annotate(t, ns, "deployments", "web")
	if out := kubectl.must(t, ns, append(follow, "--dry-run=server")...); out != "deployment.apps/web restarted (server dry run)\n" {
		t.Errorf("dry run: got %q", out)
	}
	wantFollow(t, ns, again, ns+"/deployment/web: "+image+" has changed from ")
	replacement := second(t, ns, pod, one)
	wantFollow(t, ns, "", "has no ImagePins yet")

	// Nodes that resolve the tag to an older digest, for example at a mirror, do not make it restart again and again.
	pin := api.claim(t, replacement, image, digestA)
	wantFollow(t, ns, "", "it was restarted for this before")
	api.must(t, "PATCH", pinPath(ns, pin.Name), map[string]any{"spec": map[string]any{"digest": one}}, nil)
	wantFollow(t, ns, unchanged)

	two := images.push(t, tag(t))
	wantFollow(t, ns, again, " to "+short(two))
	if at := restarted(t, ns); at == "" {
		t.Error("not restarted")
	}
}

// TestFollowAfterUndo rolls back a Deployment, as kubectl does. It is not restarted until the tag moves again.
func TestFollowAfterUndo(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	image := "registry.example.com/" + tag(t)
	one := images.push(t, tag(t))
	original := deployment(t, ns, "web", image, 1)
	annotate(t, ns, "deployments", "web")
	pod := run(t, ns, 1, one)[0]
	first := api.claim(t, pod, image, one)
	two := images.push(t, tag(t))
	wantFollow(t, ns, "deployment.apps/web restarted\n")
	replacement := second(t, ns, pod, two)
	// The times of objects are in seconds.
	testkit.EventuallyIn(t, timeout, "the ImagePin of the new revision is newer", func(context.Context) (bool, error) {
		pin := nodePin(replacement, image, two)
		api.must(t, "POST", pinPath(ns, ""), pin, pin)
		if pin.CreationTimestamp.After(first.CreationTimestamp.Time) {
			return true, nil
		}
		api.must(t, "DELETE", pinPath(ns, pin.Name), nil, nil)
		return false, nil
	})
	wantFollow(t, ns, "deployment.apps/web not restarted, no digest has changed\n")

	// kubectl rollout undo returns the template, and the annotations of the ReplicaSet, which has none of a restart.
	undo := map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"imagepin.io/restarted-for": nil}},
		"spec":     map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": nil}, "spec": original.Spec.Template.Spec}},
	}
	api.must(t, "PATCH", appsPath(ns, "deployments", "web"), undo, nil)
	testkit.EventuallyIn(t, timeout, "the first revision is current", func(context.Context) (bool, error) {
		return kubectl.in(t, ns, "explain", "deployment/web", "-o", "jsonpath={.containers[0].pin.digest}").out == one, nil
	})
	wantFollow(t, ns, "", "it was rolled back from ReplicaSet/"+ownerOf(replacement).Name)
	if at := restarted(t, ns); at != "" {
		t.Errorf("restarted at %s after the undo", at)
	}
	images.push(t, tag(t))
	wantFollow(t, ns, "deployment.apps/web restarted\n")
}

// TestFollowSeveral restarts a StatefulSet and a DaemonSet. What cannot be restarted now is skipped, and what can never be is an
// error, after the others. It is not parallel, because it restarts what follows its tags in all namespaces.
func TestFollowSeveral(t *testing.T) {
	ns, other := api.namespace(t), api.namespace(t)
	image := "registry.example.com/" + tag(t)
	images.push(t, tag(t))
	deployment(t, ns, "idle", image, 0)
	statefulSet(t, other, "db", image, 1)
	api.claim(t, run(t, other, 1, digestA)[0], image, digestA)
	third := api.namespace(t)
	daemonSet(t, third, "agent", image)
	api.claim(t, run(t, third, 2, digestA)[0], image, digestA)
	fourth, never, replicas := api.namespace(t), api.namespace(t), int32(1)
	for ns, policy := range map[string]core.PullPolicy{fourth: core.PullIfNotPresent, never: core.PullNever} {
		d := &apps.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: apps.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template(image)}}
		d.Spec.Template.Spec.Containers[0].ImagePullPolicy = policy
		api.must(t, "POST", appsPath(ns, "deployments", ""), d, nil)
		api.claim(t, run(t, ns, 1, digestA)[0], image, digestA)
	}
	fifth := api.namespace(t)
	deployment(t, fifth, "web", image, 1)
	api.claim(t, run(t, fifth, 1, digestA)[0], image, digestA)
	api.must(t, "PATCH", appsPath(fifth, "deployments", "web"), map[string]any{"spec": map[string]any{"paused": true}}, nil)
	sixth := api.namespace(t) // without the annotation
	deployment(t, sixth, "web", image, 1)
	api.claim(t, run(t, sixth, 1, digestA)[0], image, digestA)
	for _, w := range [][3]string{{ns, "deployments", "idle"}, {other, "statefulsets", "db"}, {third, "daemonsets", "agent"}, {fourth, "deployments", "web"}, {never, "deployments", "web"}, {fifth, "deployments", "web"}} {
		annotate(t, w[0], w[1], w[2])
	}
	awaitRevision(t, other, "db")
	testkit.EventuallyIn(t, timeout, "the controllers have observed all", func(context.Context) (bool, error) {
		for _, w := range [][2]string{{ns, "deployment/idle"}, {third, "daemonset/agent"}, {fifth, "deployment/web"}} {
			if kubectl.in(t, w[0], "explain", w[1]).code != 0 {
				return false, nil
			}
		}
		return true, nil
	})

	allowFollower(t)
	r := kubectl.awaitAllowed(t, ns, append(follow, "--all-namespaces", "--as=system:serviceaccount:kube-system:imagepin-follow")...)
	for _, want := range []string{
		ns + "/deployment/idle: skipped, ReplicaSet/idle-", "has no ImagePins yet", fifth + "/deployment/web: skipped, ", "paused",
		fourth + "/deployment/web: ReplicaSet/", "web has the pull policy IfNotPresent", "--new-revision=resolve",
		never + "/deployment/web: ReplicaSet/", "web has the pull policy Never, with which nodes pull nothing",
	} {
		if !strings.Contains(r.err, want) {
			t.Errorf("messages %q do not have %q", r.err, want)
		}
	}
	for _, want := range []string{"statefulset.apps/db restarted\n", "daemonset.apps/agent restarted\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("output %q does not have %q", r.out, want)
		}
	}
	if r.code != 1 || restarted(t, sixth) != "" || restarted(t, fifth) != "" || restarted(t, fourth) != "" || restarted(t, never) != "" {
		t.Errorf("exit code %d, want 1, and no restart of others", r.code)
	}

	// Nodes with new_revision = "resolve" resolve the tag for IfNotPresent, but not for Never.
	resolve := append(follow, "--new-revision=resolve")
	kubectl.in(t, never, resolve...).wantError(t, "web has the pull policy Never, with which nodes pull nothing")
	if out := kubectl.must(t, fourth, resolve...); out != "deployment.apps/web restarted\n" || restarted(t, fourth) == "" || restarted(t, never) != "" {
		t.Errorf("with --new-revision=resolve: got %q, want that only the Deployment with IfNotPresent is restarted", out)
	}
	kubectl.in(t, ns, "refresh", "--annotated", "deployment/idle").wantError(t, "--annotated cannot be used with names")
	kubectl.in(t, ns, "refresh", "-A", "deployment/idle").wantError(t, "--all-namespaces needs --annotated")
	kubectl.in(t, ns, "refresh").wantError(t, "NAME or KIND/NAME is required")

	// Without --restart, it moves the ImagePins.
	if out := kubectl.must(t, never, "refresh", "--annotated", "--insecure-registry"); !strings.Contains(out, fmt.Sprintf("moved from %s to ", short(digestA))) {
		t.Errorf("got %q", out)
	}
}
