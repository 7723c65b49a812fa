package pull

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

var refused = testkit.Failure{Name: "ImageVerificationFailed", Code: codes.PermissionDenied, Prefix: "SignatureValidationFailed"}

// TestVerifier checks that a verifier plugin is called once for every pull and target, with the registry's digest.
func TestVerifier(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{SandboxImage: testkit.PushPause(t, reg), Handlers: []node.Handler{
		{Name: "native", Snapshotter: "native"}, {Name: "foreign", Platform: "linux/s390x"},
	}})
	digest := testkit.Push(t, reg, "app:v1", testkit.AppIndex(t, images.Options{}, images.HostPlatform(), "linux/s390x"))
	ref, byDigest := reg.Ref("app:v1"), reg.Ref("app@"+digest.String())
	call := ref + " " + digest.String()
	v := testkit.NewVerifier(t, n)

	// A refused pull requests only the digest from the registry.
	v.Refuse(true)
	for _, handler := range []string{"", "native", "foreign"} {
		reg.Reset()
		err := checkFailedPull(t, n, ref, handler, refused)
		if err != nil && !strings.Contains(err.Error(), "nobody signed it") {
			t.Errorf("the error does not contain the reason: %v", err)
		}
		v.CheckAsked("refused pull", call)
		if reg.Count(registry.Is("HEAD", "")) != 1 || reg.Count() != 1 {
			t.Errorf("refused pull: want only 1 HEAD request:\n%s", reg.Dump())
		}
	}

	v.Refuse(false)
	var id string
	for _, what := range []string{"cold pull", "warm pull"} {
		for _, handler := range []string{"", "foreign"} {
			var err error
			if id, err = n.Pull(ctx, ref, handler); err != nil {
				t.Fatal(err)
			}
			v.CheckAsked(what, call)
		}
	}
	if _, err := n.Pull(ctx, byDigest, ""); err != nil {
		t.Fatal(err)
	}
	v.CheckAsked("warm pull by digest", byDigest+" "+digest.String())

	// A refused pull does not get the image on the node. The image stays for the pods that run it.
	v.Refuse(true)
	before := testkit.State(t, n)
	for _, r := range []string{ref, byDigest} {
		_, err := n.Pull(ctx, r, "")
		refused.Check(t, err, r, testkit.TargetOf(""))
		v.CheckAsked("refused warm pull", r+" "+digest.String())
	}
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("refused warm pulls changed the node's state:\n%s", d)
	}
	if img, err := n.ImageStatus(ctx, id, ""); err != nil || img == nil {
		t.Errorf("the image is gone after refused pulls: %v, %v", img, err)
	}

	// Making an image ready calls the verifier, too.
	v.Refuse(false)
	pod, err := n.RunPod(ctx, node.PodOptions{Handler: "native"})
	if err != nil {
		t.Fatal(err)
	}
	v.CheckAsked("sandbox image", reg.Ref(testkit.PauseRef)+" "+pauseDigest(t, reg))
	v.Refuse(true)
	reg.Reset()
	before = testkit.State(t, n)
	_, err = n.CreateContainer(ctx, pod, node.ContainerOptions{Image: ref})
	refused.Check(t, testkit.RootCause(err), ref, testkit.TargetOf("native"))
	v.CheckAsked("refused CreateContainer", call)
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("a refused CreateContainer changed the node's state:\n%s", d)
	}
	v.Refuse(false)
	if _, err := n.CreateContainer(ctx, pod, node.ContainerOptions{Image: ref}); err != nil {
		t.Fatal(err)
	}
	v.CheckAsked("CreateContainer", call)
	if reg.Count() != 0 {
		t.Errorf("the registry got requests for an image on the node:\n%s", reg.Dump())
	}
}

// TestVerifierOfRefresh checks that a refresh calls the verifier once, with the tag, and that no pin moves to a digest that
// it refuses, with and without an image on the node.
func TestVerifierOfRefresh(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	r.MustRemovePod(r.MustPod(""))
	v := testkit.NewVerifier(t, r.Node)
	for _, onNode := range []bool{true, false} {
		ref := r.Reg.Ref(fmt.Sprintf("node/app-%v:v1", onNode))
		name := strings.TrimPrefix(ref, r.Reg.Host()+"/")
		first := r.Version(name, "first")
		for _, handler := range []string{"", "native"} {
			r.MustPull(ref, handler)
			v.CheckAsked("pull", ref+" "+first)
		}
		if !onNode {
			r.MustRemove(ref, "")
		}
		next := r.Version(name, "next")
		v.Refuse(true)
		if out, code := r.Operator("refresh", ref); code != 1 || !strings.Contains(out, "ImageVerificationFailed") {
			t.Errorf("refused refresh, image on the node: %v: got exit code %d:\n%s", onNode, code, out)
		}
		v.CheckAsked("refused refresh", ref+" "+next)
		if held := r.Pins(ref)["node"].GetRoot().GetDigest(); held != first {
			t.Errorf("refused refresh, image on the node: %v: got pin %s, want %s", onNode, held, first)
		}
		v.Refuse(false)
		if out, code := r.Operator("refresh", ref); code != 10 {
			t.Errorf("refresh, image on the node: %v: got exit code %d:\n%s", onNode, code, out)
		}
		v.CheckAsked("refresh", ref+" "+next)
	}
}

// TestBrokenVerifier checks that pulls fail if the verifier cannot run.
func TestBrokenVerifier(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{})
	testkit.Push(t, reg, "app:v1", testkit.App(t, images.Options{}))
	if err := os.WriteFile(n.VerifierDir()+"/verifier", []byte("this is no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	checkFailedPull(t, n, reg.Ref("app:v1"), "", refused)
	if err := os.Remove(n.VerifierDir() + "/verifier"); err != nil {
		t.Fatal(err)
	}
	checkNextPull(t, n, reg.Ref("app:v1"), "")
}

// pauseDigest returns the digest of the sandbox image in a registry.
func pauseDigest(t *testing.T, reg *registry.Registry) string {
	t.Helper()
	idx, err := images.PauseIndex(testkit.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Push(t, reg, testkit.PauseRef, idx).String()
}
