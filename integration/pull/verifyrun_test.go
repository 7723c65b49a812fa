package pull

import (
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// runRules verify the containers of references below run/, and pin those below run/node/.
const runRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/run/node/**"]
version_consistency = "node"
verify = "run"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/run/**"]
verify = "run"
`

// verifiedRun is a node that verifies containers.
type verifiedRun struct {
	*testkit.Rig
	verifier testkit.Verifier
	pod      *node.Pod
}

func newVerifiedRun(t *testing.T) *verifiedRun {
	t.Helper()
	r := testkit.NewRig(t, node.Options{Extra: runRules})
	return &verifiedRun{Rig: r, pod: r.MustPod("")}
}

// push pushes and pulls an image, and returns its ID and what a verifier is called with for it.
func (v *verifiedRun) push(ref, version string) (tag, id, call string) {
	v.T.Helper()
	d := v.Version(ref, version)
	tag = v.Reg.Ref(ref)
	return tag, v.MustPull(tag, ""), tag + " " + d
}

// create creates a container as kubelet does, and checks what the verifier is called with. It fails the test unless the
// container is refused or created as wanted. A refused container changes nothing on the node.
func (v *verifiedRun) create(what string, ok bool, opts node.ContainerOptions, calls ...string) {
	v.T.Helper()
	before := v.MustState()
	_, err := v.CreateContainer(v.Ctx, v.pod, opts)
	if ok && err != nil {
		v.T.Errorf("%s: %v", what, err)
	}
	if !ok {
		named, _, _ := strings.Cut(calls[0], " ")
		refused.Check(v.T, testkit.RootCause(err), named, testkit.TargetOf(""))
		v.WantState(what, before)
	}
	if v.verifier.Node != nil {
		v.verifier.CheckAsked(what, calls...)
	}
}

// TestVerifyRun checks that a container is created only from an image that the verifiers accept, that they are called once for
// each reference and digest, and again if they change.
func TestVerifyRun(t *testing.T) {
	t.Parallel()
	v := newVerifiedRun(t)
	tag, id, call := v.push("run/app:v1", "app")
	free, freeID, _ := v.push("free/app:v1", "free")
	volume, volumeID, volumeCall := v.push("run/volume:v1", "volume")
	app := node.ContainerOptions{Image: id, UserImage: tag}
	mounts := node.ContainerOptions{Image: freeID, UserImage: free, Mounts: []*cri.Mount{{
		ContainerPath: "/volume", Readonly: true, Image: &cri.ImageSpec{Image: volumeID, UserSpecifiedImage: volume},
	}}}
	v.create("no verifier", true, app)

	v.verifier = testkit.NewVerifier(t, v.Node)
	v.create("a new verifier", true, app, call)
	v.create("the same again", true, app)
	v.create("by the name", true, node.ContainerOptions{Image: tag})
	running, line, err := v.RunContainer(v.Ctx, v.pod, app)
	if err != nil || line == "" {
		t.Fatalf("run: got %q, %v", line, err)
	}
	v.verifier.CheckAsked("run")

	v.verifier.Refuse(true)
	v.create("accepted before", true, app)
	v.create("without a rule", true, node.ContainerOptions{Image: freeID, UserImage: free})
	for range 2 {
		v.create("a refused volume", false, mounts, volumeCall)
	}
	v.verifier.Refuse(false)
	v.create("a volume", true, mounts, volumeCall)

	// Another program can decide otherwise.
	v.verifier = testkit.NewVerifier(t, v.Node)
	v.verifier.Refuse(true)
	v.create("another verifier", false, app, call)
	if s, err := running.Status(v.Ctx); err != nil || s.GetState() != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container that runs: %v, %v", s.GetState(), err)
	}
	for _, name := range []string{id, strings.TrimPrefix(id, "sha256:")[:16]} {
		v.create("an image ID", false, node.ContainerOptions{Image: name}, v.byDigest("run/app", call))
	}
	v.verifier.Refuse(false)

	// A pull is verified each time. What it has accepted is not verified again.
	next, nextID, nextCall := v.push("run/next:v1", "next")
	v.verifier.CheckAsked("pull", nextCall)
	v.create("after a pull", true, node.ContainerOptions{Image: nextID, UserImage: next})
	v.MustPull(next, "")
	v.verifier.CheckAsked("warm pull", nextCall)

	v.KillAndRestart(nil)
	v.create("after a restart", true, app, call)
}

// byDigest returns a call for the digest of a repository.
func (v *verifiedRun) byDigest(repository, call string) string {
	_, d, _ := strings.Cut(call, " ")
	return v.Reg.Ref(repository+"@"+d) + " " + d
}

// TestVerifyRunOfPins checks that a container is verified for the digest of its pin, and that a refused one makes no pin.
func TestVerifyRunOfPins(t *testing.T) {
	t.Parallel()
	v := newVerifiedRun(t)
	v.verifier = testkit.NewVerifier(t, v.Node)
	tag, id, call := v.push("run/node/app:v1", "one")
	v.verifier.CheckAsked("pull", call)
	app := node.ContainerOptions{Image: id, UserImage: tag}
	v.create("pinned by a pull", true, app)
	if out, code := v.Operator("pin", "rm", tag); code != 0 {
		t.Fatalf("pin rm: %d %s", code, out)
	}
	v.verifier = testkit.NewVerifier(t, v.Node)
	v.verifier.Refuse(true)
	v.create("refused", false, app, call)
	if pins := v.Pins(tag); len(pins) != 0 {
		t.Errorf("a refused container has made pins: %v", pins)
	}
	v.verifier.Refuse(false)
	v.create("accepted", true, app, call)
	if held := v.Pins(tag)["node"].GetRoot().GetDigest(); tag+" "+held != call {
		t.Errorf("got pin %s, want %s", held, call)
	}

	// An operator moves the pin to another build, which no verifier accepts. The image that kubelet has is that of the tag.
	older := v.Version("run/node/app:other", "two")
	v.verifier.Refuse(true)
	if out, code := v.Operator("pin", "set", tag, older, "--scope", "node"); code != 0 {
		t.Fatalf("pin set: %d %s", code, out)
	}
	v.create("another pin", false, app, tag+" "+older)
	v.WantOperator(0, []string{"resolve", tag}, "verify run")
}
