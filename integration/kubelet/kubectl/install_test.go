package kubectl

import (
	"strings"
	"testing"
)

// Before ImagePins are installed, drift works and other commands say what to install.
func TestWithoutImagePins(t *testing.T) {
	t.Parallel()
	if r := without["drift"]; r.code != 0 || r.err != "No drift found in 0 pods of 0 owners.\n" {
		t.Errorf("drift: exit code %d, %q", r.code, r.err)
	}
	for _, command := range []string{"get", "rm web.0123456789"} {
		without[command].wantError(t, `error: the server doesn't have a resource type "imagepins"`, "kubectl imagepin install | kubectl apply -f -")
	}
	without["explain pod/p"].wantError(t, `Error from server (NotFound): pods "p" not found`)
}

// The roles that Kubernetes has for people permit what the commands need: view to look, edit to change.
func TestRoles(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	image := "registry.example.com/" + tag(t)
	images.push(t, tag(t))
	deployment(t, ns, "web", image, 1)
	pod := run(t, ns, 1, digestA)[0]
	pin := api.claim(t, pod, image, digestA)
	refresh := []string{"refresh", "deployment/web", "--insecure-registry"}

	api.allow(t, ns, "viewer", "ClusterRole", "view")
	for _, command := range []string{"get deployment/web", "explain deployment/web", "explain " + pod.Name, "drift"} {
		if r := kubectl.awaitAllowed(t, ns, append(strings.Fields(command), "--as=viewer")...); r.code != 0 {
			t.Errorf("%s: exit code %d", command, r.code)
		}
	}
	kubectl.in(t, ns, append(refresh, "--as=viewer")...).wantError(t, "Error from server (Forbidden)", `cannot patch resource "imagepins"`)
	kubectl.in(t, ns, "rm", pin.Name, "--as=viewer").wantError(t, "Error from server (Forbidden)", `cannot delete resource "imagepins"`)

	api.allow(t, ns, "editor", "ClusterRole", "edit")
	for _, command := range [][]string{
		refresh, append(refresh, "--restart"), {"set", "deployment/web", image, digestB}, append(refresh, "--restart"), {"rm", pin.Name},
	} {
		if r := kubectl.awaitAllowed(t, ns, append(command, "--as=editor")...); r.code != 0 {
			t.Errorf("%s: exit code %d", command, r.code)
		}
	}
	if restarted(t, ns) == "" {
		t.Error("the Deployment is not restarted")
	}
}
