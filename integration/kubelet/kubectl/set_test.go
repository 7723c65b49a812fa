package kubectl

import (
	"encoding/json"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// pinNameOf returns the name of the ImagePin of a pod's image.
func pinNameOf(p *core.Pod, image string) string { return v1alpha1.Name(ownerOf(p), image) }

func TestSet(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 1)
	pod := run(t, ns, 1, digestA)[0]
	owner, name := ownerOf(pod), pinNameOf(pod, image)
	object := "imagepin.imagepin.io/" + name + " "

	for strategy, suffix := range map[string]string{"client": "(dry run)", "server": "(server dry run)"} {
		if out := kubectl.must(t, ns, "set", "deployment/web", image+"@"+digestA, "--dry-run="+strategy); out != object+"created "+suffix+"\n" {
			t.Errorf("got %q", out)
		}
	}
	if pins := api.pins(t, ns); len(pins) != 0 {
		t.Fatalf("a dry run has created %v", pins)
	}
	var printed v1alpha1.ImagePin
	if err := json.Unmarshal([]byte(kubectl.must(t, ns, "set", "deployment/web", image, digestA, "--dry-run=client", "-o", "json")), &printed); err != nil {
		t.Fatal(err)
	}
	if out := kubectl.must(t, ns, "set", "deployment/web", image+"@"+digestA); out != object+"created\n" {
		t.Errorf("got %q", out)
	}
	pin := api.pins(t, ns)[name]
	want := v1alpha1.ImagePinSpec{Image: image, Digest: digestA, Owner: owner}
	if pin.Spec != want || printed.Spec != want || printed.Name != name {
		t.Errorf("got %+v, want %+v", pin.Spec, want)
	}
	reference := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner.Name, UID: owner.UID}
	wantReference(t, pin, reference)

	if out := kubectl.must(t, ns, "set", "deployment/web", image, digestA); out != object+"unchanged\n" {
		t.Errorf("got %q", out)
	}
	if out := kubectl.must(t, ns, "set", "pod/"+pod.Name, image, digestB); out != object+"moved from aaaaaaaaaaaa to bbbbbbbbbbbb\n" {
		t.Errorf("got %q", out)
	}
	if pin := api.pins(t, ns)[name]; pin.Spec.Digest != digestB {
		t.Errorf("got digest %s", pin.Spec.Digest)
	}
	// The normalized image and the complete digest.
	r := kubectl.in(t, ns, "set", "deployment/web", "nginx", digestA, "-o", "jsonpath={.spec.image} {.spec.digest}")
	if r.out != "docker.io/library/nginx:latest "+digestA || !strings.Contains(r.err, "Warning: no container of ReplicaSet/"+owner.Name+" has the image docker.io/library/nginx:latest") {
		t.Errorf("got %q, %q", r.out, r.err)
	}
}

// The ImagePins of a StatefulSet and a DaemonSet are deleted with their ControllerRevision.
func TestSetRevision(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"statefulset", "daemonset"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ns := api.namespace(t)
			if kind == "statefulset" {
				statefulSet(t, ns, "db", image, 2)
			} else {
				daemonSet(t, ns, "db", image)
			}
			pod := run(t, ns, 2, digestA)[0]
			kubectl.must(t, ns, "set", kind+"/db", image, digestA)
			pin, ok := api.pins(t, ns)[pinNameOf(pod, image)]
			if !ok || pin.Spec.Owner != ownerOf(pod) {
				t.Fatalf("got %+v, want an ImagePin of %+v", pin.Spec, ownerOf(pod))
			}
			var revisions apps.ControllerRevisionList
			api.must(t, "GET", appsPath(ns, "controllerrevisions", ""), nil, &revisions)
			if len(revisions.Items) != 1 {
				t.Fatalf("there are %d ControllerRevisions", len(revisions.Items))
			}
			wantReference(t, pin, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ControllerRevision", Name: revisions.Items[0].Name, UID: revisions.Items[0].UID})
		})
	}
}

func wantReference(t *testing.T, pin v1alpha1.ImagePin, want metav1.OwnerReference) {
	t.Helper()
	if len(pin.OwnerReferences) != 1 {
		t.Fatalf("got %+v, want one reference", pin.OwnerReferences)
	}
	got := pin.OwnerReferences[0]
	if got.BlockOwnerDeletion == nil || *got.BlockOwnerDeletion || got.Controller != nil {
		t.Errorf("got %+v, want blockOwnerDeletion false and no controller", got)
	}
	if got.BlockOwnerDeletion = nil; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSetErrors(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 1)
	pod := run(t, ns, 1, digestA)[0]
	for _, tc := range []struct {
		args string
		want string
	}{
		{"deployment/web", "KIND/NAME and IMAGE@DIGEST is required"},
		{"deployment/web " + image, "has no digest: use IMAGE:TAG@DIGEST"},
		{"deployment/web shop/web@" + digestA, "has no tag to pin"},
		{"deployment/web " + image + " sha256:0a4d", `invalid digest "sha256:0a4d"`},
		{"deployment/web " + image + "@" + digestA + " " + digestB, "there is another one"},
		{"deployment/web Web " + digestA, `invalid image "Web"`},
		{"web " + image + " " + digestA, `the argument "web" must be RESOURCE/NAME`},
		{"deployment/none " + image + " " + digestA, `deployments.apps "none" not found`},
		{"namespace/" + ns + " " + image + " " + digestA + " --dry-run=all", `Invalid dry-run value (all)`},
	} {
		kubectl.in(t, ns, append([]string{"set"}, strings.Fields(tc.args)...)...).wantError(t, tc.want)
	}
	// An object of that name which is not this pin is left as it is.
	foreign := api.claim(t, pod, image, digestA)
	api.must(t, "DELETE", pinPath(ns, foreign.Name), nil, nil)
	foreign.ResourceVersion, foreign.UID, foreign.Spec.Owner.UID = "", "", "other"
	api.must(t, "POST", pinPath(ns, ""), foreign, nil)
	kubectl.in(t, ns, "set", "deployment/web", image, digestB).wantError(t, "is of another image or owner")
	if pin := api.pins(t, ns)[foreign.Name]; pin.Spec.Digest != digestA {
		t.Errorf("got digest %s", pin.Spec.Digest)
	}
}
