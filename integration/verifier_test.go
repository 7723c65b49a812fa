package integration

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

var refused = failure{name: "ImageVerificationFailed", code: codes.PermissionDenied, prefix: "SignatureValidationFailed"}

// verifier is an image verifier plugin of a node: a script that notes what it is asked and allows it unless told otherwise.
type verifier struct {
	t    *testing.T
	node *node.Node
}

func newVerifier(t *testing.T, n *node.Node) verifier {
	t.Helper()
	// Written elsewhere and moved: what is half written cannot be run.
	script := "#!/bin/sh\necho \"$2 $4\" >> " + n.Path("asked") + "\n" +
		"if [ -e " + n.Path("refuse") + " ]; then echo 'nobody signed it'; exit 1; fi\n"
	if err := os.WriteFile(n.Path("verifier"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(n.Path("verifier"), n.VerifierDir()+"/verifier"); err != nil {
		t.Fatal(err)
	}
	return verifier{t, n}
}

// refuse makes the verifier refuse everything from now on, or nothing.
func (v verifier) refuse(everything bool) {
	v.t.Helper()
	err := os.Remove(v.node.Path("refuse"))
	if everything {
		err = os.WriteFile(v.node.Path("refuse"), nil, 0o644)
	}
	if err != nil {
		v.t.Fatal(err)
	}
}

// checkAsked fails the test where the verifier was asked anything but these questions, "reference digest", since the last time.
func (v verifier) checkAsked(what string, questions ...string) {
	v.t.Helper()
	b, err := os.ReadFile(v.node.Path("asked"))
	if err != nil && !os.IsNotExist(err) {
		v.t.Fatal(err)
	}
	if got, want := strings.TrimSpace(string(b)), strings.Join(questions, "\n"); got != want {
		v.t.Errorf("%s: the verifier was asked\n%s\nnot\n%s", what, got, want)
	}
	if err := os.WriteFile(v.node.Path("asked"), nil, 0o644); err != nil {
		v.t.Fatal(err)
	}
}

// TestVerifier has an image verifier plugin asked once for every pull and target, with the digest that the registry gave.
func TestVerifier(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{SandboxImage: testkit.PushPause(t, reg), Handlers: []node.Handler{
		{Name: "native", Snapshotter: "native"}, {Name: "foreign", Platform: "linux/s390x"},
	}})
	digest := testkit.Push(t, reg, "app:v1", testkit.AppIndex(t, images.Options{}, images.HostPlatform(), "linux/s390x"))
	ref, byDigest := reg.Ref("app:v1"), reg.Ref("app@"+digest.String())
	question := ref + " " + digest.String()
	v := newVerifier(t, n)

	// A refused pull has asked the registry for the digest, and for nothing else.
	v.refuse(true)
	for _, handler := range []string{"", "native", "foreign"} {
		reg.Reset()
		err := checkFailedPull(t, n, ref, handler, refused)
		if err != nil && !strings.Contains(err.Error(), "nobody signed it") {
			t.Errorf("the error does not say why: %v", err)
		}
		v.checkAsked("refused pull", question)
		if reg.Count(registry.Is("HEAD", "")) != 1 || reg.Count() != 1 {
			t.Errorf("a refused pull made other requests than one HEAD:\n%s", reg.Dump())
		}
	}

	v.refuse(false)
	var id string
	for _, what := range []string{"cold pull", "warm pull"} {
		for _, handler := range []string{"", "foreign"} {
			var err error
			if id, err = n.Pull(ctx, ref, handler); err != nil {
				t.Fatal(err)
			}
			v.checkAsked(what, question)
		}
	}
	if _, err := n.Pull(ctx, byDigest, ""); err != nil {
		t.Fatal(err)
	}
	v.checkAsked("warm pull by digest", byDigest+" "+digest.String())

	// What is here is not handed out to a pull that is refused, and is still there for the pods that run it.
	v.refuse(true)
	before := testkit.State(t, n)
	for _, r := range []string{ref, byDigest} {
		_, err := n.Pull(ctx, r, "")
		refused.check(t, err, r, targetOf(""))
		v.checkAsked("refused warm pull", r+" "+digest.String())
	}
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("refused warm pulls have changed:\n%s", d)
	}
	if img, err := n.ImageStatus(ctx, id, ""); err != nil || img == nil {
		t.Errorf("the image is gone after refused pulls: %v, %v", img, err)
	}

	// Making ready is a pull.
	v.refuse(false)
	pod, err := n.RunPod(ctx, node.PodOptions{Handler: "native"})
	if err != nil {
		t.Fatal(err)
	}
	v.checkAsked("sandbox image", reg.Ref(testkit.PauseRef)+" "+pauseDigest(t, reg))
	v.refuse(true)
	reg.Reset()
	before = testkit.State(t, n)
	_, err = n.CreateContainer(ctx, pod, node.ContainerOptions{Image: ref})
	refused.check(t, rootCause(err), ref, targetOf("native"))
	v.checkAsked("refused CreateContainer", question)
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("a refused CreateContainer has changed:\n%s", d)
	}
	v.refuse(false)
	if _, err := n.CreateContainer(ctx, pod, node.ContainerOptions{Image: ref}); err != nil {
		t.Fatal(err)
	}
	v.checkAsked("CreateContainer", question)
	if reg.Count() != 0 {
		t.Errorf("the registry was asked for what is here:\n%s", reg.Dump())
	}
}

// TestBrokenVerifier: a plugin that gives no judgement does not let anything pass.
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

// pauseDigest is the digest of the sandbox image in a registry.
func pauseDigest(t *testing.T, reg *registry.Registry) string {
	t.Helper()
	idx, err := images.PauseIndex(testkit.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Push(t, reg, testkit.PauseRef, idx).String()
}

// rootCause is the status below what the kit has added to an error.
func rootCause(err error) error {
	for err != nil {
		below, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = below.Unwrap()
	}
	return nil
}
