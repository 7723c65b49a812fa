package kubectl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// short returns the digits of a digest that commands print.
func short(digest string) string { return strings.TrimPrefix(digest, "sha256:")[:12] }

// tag returns a repository of the registry for a test, with a tag.
func tag(t *testing.T) string {
	return strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + "/web:v7"
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	image, sidecar := "registry.example.com/"+tag(t), "registry.example.com/sidecar-"+tag(t)
	before, same := images.push(t, tag(t)), images.push(t, "sidecar-"+tag(t))
	deployment(t, ns, "web", image, 1)
	old := run(t, ns, 1, before)[0]
	oldPin := api.claim(t, old, image, before)
	current := rollOut(t, ns, "web", old, before)
	pin, sidecarPin := api.claim(t, current, image, before), api.claim(t, current, sidecar, same)
	after := images.push(t, tag(t))
	lines := func(suffix string) string {
		moved := fmt.Sprintf("imagepin.imagepin.io/%s moved from %s to %s%s\n", pin.Name, short(before), short(after), suffix)
		unchanged := fmt.Sprintf("imagepin.imagepin.io/%s unchanged%s\n", sidecarPin.Name, suffix)
		if pin.Name < sidecarPin.Name {
			return moved + unchanged
		}
		return unchanged + moved
	}
	digests := func(what, want string) {
		t.Helper()
		pins := api.pins(t, ns)
		if pins[pin.Name].Spec.Digest != want || pins[sidecarPin.Name].Spec.Digest != same || pins[oldPin.Name].Spec.Digest != before {
			t.Errorf("%s: got %s, %s and %s of the old revision, want %s, %s and %s", what,
				pins[pin.Name].Spec.Digest, pins[sidecarPin.Name].Spec.Digest, pins[oldPin.Name].Spec.Digest, want, same, before)
		}
	}

	for strategy, suffix := range map[string]string{"client": " (dry run)", "server": " (server dry run)"} {
		if out := kubectl.must(t, ns, "refresh", "deployment/web", "--insecure-registry", "--dry-run="+strategy); out != lines(suffix) {
			t.Errorf("got %q, want %q", out, lines(suffix))
		}
		digests("dry run", before)
	}
	kubectl.in(t, ns, "refresh", "deployment/web").wantError(t, "cannot resolve "+image, "cannot resolve "+sidecar)
	digests("over HTTPS", before)
	if out := kubectl.must(t, ns, "refresh", "deployment/web", "--insecure-registry"); out != lines("") {
		t.Errorf("got %q, want %q", out, lines(""))
	}
	digests("refresh", after)
	if p := api.pins(t, ns)[pin.Name]; p.UID != pin.UID || *p.Spec.By != *pin.Spec.By {
		t.Errorf("got %+v, want the same object, created by %+v", p, pin.Spec.By)
	}
	if out := kubectl.must(t, ns, "explain", "deployment/web"); !strings.Contains(out, "ago with kubectl-imagepin") || !strings.Contains(out, before+" in 1 pod on n2: differs from the ImagePin") {
		t.Errorf("got %s, want who has moved it, and that the pod runs the old digest", out)
	}
	if out := kubectl.must(t, ns, "refresh", "imagepin/"+oldPin.Name, "--insecure-registry"); !strings.Contains(out, oldPin.Name+" moved") {
		t.Errorf("got %q", out)
	}
	if p := api.pins(t, ns)[oldPin.Name]; p.Spec.Digest != after {
		t.Errorf("got %s, want %s", p.Spec.Digest, after)
	}
}

// If one tag cannot be resolved, nothing is changed.
func TestRefreshAllOrNothing(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	image := "registry.example.com/" + tag(t)
	images.push(t, tag(t))
	statefulSet(t, ns, "db", image, 1)
	pod := run(t, ns, 1, digestA)[0]
	pin := api.claim(t, pod, image, digestA)
	api.claim(t, pod, image+"-none", digestA)
	kubectl.in(t, ns, "refresh", "statefulset/db", "--insecure-registry").wantError(t, "cannot resolve "+image+"-none", "MANIFEST_UNKNOWN")
	if p := api.pins(t, ns)[pin.Name]; p.Spec.Digest != digestA {
		t.Errorf("got %s", p.Spec.Digest)
	}
	r := kubectl.in(t, ns, "refresh", "statefulset/db", "--insecure-registry", "--as=nobody")
	r.wantError(t, "(Forbidden)")
}

// The registry gets the credential of the Docker configuration, which is in no output.
func TestRefreshCredential(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	image := privateHost + "/" + tag(t)
	digest := images.push(t, tag(t))
	deployment(t, ns, "web", image, 1)
	pin := api.claim(t, run(t, ns, 1, digestA)[0], image, digestA)
	kubectl.in(t, ns, "refresh", "deployment/web", "--insecure-registry").wantError(t, "cannot resolve "+image, "log in first")

	config := t.TempDir()
	auth := fmt.Sprintf(`{"auths":{%q:{"username":%q,"password":%q}}}`, privateHost, user, password)
	if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(auth), 0o600); err != nil {
		t.Fatal(err)
	}
	loggedIn := *kubectl
	loggedIn.env = append(kubectl.env[:len(kubectl.env):len(kubectl.env)], "DOCKER_CONFIG="+config)
	r := loggedIn.in(t, ns, "refresh", "deployment/web", "--insecure-registry", "-v=9")
	if r.code != 0 || api.pins(t, ns)[pin.Name].Spec.Digest != digest {
		t.Errorf("exit code %d, want that the ImagePin is moved", r.code)
	}
	if strings.Contains(r.out+r.err, password) {
		t.Error("the output has the password")
	}
}

func TestRefreshWithoutPins(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 1)
	rs := ownerOf(run(t, ns, 1, digestA)[0]).Name
	r := kubectl.in(t, ns, "refresh", "deployment/web")
	if r.code != 0 || r.err != "No ImagePins of ReplicaSet/"+rs+" found in "+ns+" namespace.\n" {
		t.Errorf("exit code %d, %q", r.code, r.err)
	}
	kubectl.in(t, ns, "refresh", "deployment/web", "--restart").wantError(t, "error: ReplicaSet/"+rs+" has no ImagePins to compare")
	kubectl.in(t, ns, "refresh", "web.0123456789").wantError(t, "Error from server (NotFound)")
}
