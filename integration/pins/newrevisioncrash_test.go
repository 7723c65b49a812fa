package pins

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// wantRestart starts a container again in a pod as kubelet does, and fails the test unless it runs a version of the image.
func wantRestart(r *testkit.Rig, pod *node.Pod, k node.KubeletPod, version string) *node.KubeletResult {
	r.T.Helper()
	res := &node.KubeletResult{Pod: pod}
	opts, err := r.ImageAsKubelet(r.Ctx, k, res)
	if err != nil {
		r.T.Fatal(err)
	}
	if res.Container, res.Line, err = r.RunContainer(r.Ctx, pod, opts); err != nil {
		r.T.Fatal(err)
	}
	if want := testkit.Line(images.Options{Version: version}, images.HostPlatform()); res.Line != want {
		r.T.Errorf("the container prints %q, want %q", res.Line, want)
	}
	return res
}

// TestNewRevisionOfRunningPodWithRebuiltIndex switches the rule on while a pod runs an image that two indexes of the repository list: a
// build whose image was cached got another attestation. The pod keeps its build, which becomes that of the revision.
func TestNewRevisionOfRunningPodWithRebuiltIndex(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref := r.Reg.Ref("shop/cart:v1")
	first := r.Version("shop/cart:v1", "one")
	r.WantVersion(ifNotPresent(ref, "1"), "one")
	for build := 2; ; build++ { // whose digest is sorted last
		_, rebuilt := r.Push("shop/cart:v1", images.Options{Version: "one", Annotations: map[string]string{"build": strconv.Itoa(build)}},
			images.HostPlatform(), "linux/arm64")
		if _, d, _ := strings.Cut(rebuilt, "@"); d > first {
			break
		}
	}
	r.MustPull(ref, "")
	running := r.WantVersion(ifNotPresent(ref, "2"), "one")
	r.Version("shop/cart:v1", "two")
	r.KillAndRestart(func(o *node.Options) { o.Extra = resolveRules })
	r.MustPull(ref, "") // another pod has pulled the new build

	r.Reg.Reset()
	last := running.Container
	for range 3 {
		res := wantRestart(r, running.Pod, ifNotPresent(ref, "2"), "one")
		if err := last.Remove(r.Ctx); err != nil { // kubelet keeps the last one
			t.Fatal(err)
		}
		last = res.Container
	}
	r.WantNoRequests("a pod that runs")
	if _, ok := r.Pins(ref)["workload/shop/pod-template-hash=2"]; !ok {
		t.Errorf("got the pins %v, none of the revision", r.Pins(ref))
	}
}

// TestNewRevisionOfRunningPodAfterKubeletRestart switches the rule on, and restarts kubelet too, while a pod runs. ImageStatus does not
// know the pod then. CreateContainer does: the pod keeps its build.
func TestNewRevisionOfRunningPodAfterKubeletRestart(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref := r.Reg.Ref("shop/cart:v1")
	first := r.Version("shop/cart:v1", "one")
	running := r.WantVersion(ifNotPresent(ref, "1"), "one")
	r.Version("shop/cart:v1", "two")
	r.KillAndRestart(func(o *node.Options) { o.Extra = resolveRules })
	r.MustPull(ref, "") // another pod has pulled the new build

	running.Pod.Config.Annotations[node.SeenAnnotation] = "after the restart of kubelet"
	wantRestart(r, running.Pod, ifNotPresent(ref, "1"), "one")
	wantRestart(r, running.Pod, ifNotPresent(ref, "1"), "one")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=1": first})
}

// TestNewRevisionOfRunningPodThatIsRefused switches the rule on, and installs an image verifier that does not accept the image of a pod
// that runs. A pull resolves the tag, which has been signed since. Without a pull, the pod keeps its build without a pin.
func TestNewRevisionOfRunningPodThatIsRefused(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref := r.Reg.Ref("shop/cart:v1")
	first := r.Version("shop/cart:v1", "one")
	running := r.WantVersion(ifNotPresent(ref, "1"), "one")
	second := r.Version("shop/cart:v1", "two")
	script := "#!/bin/sh\nif [ \"$4\" = " + first + " ]; then echo 'nobody signed it'; exit 1; fi\n"
	if err := os.WriteFile(r.Path("verifier"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(r.Path("verifier"), r.VerifierDir()+"/verifier"); err != nil {
		t.Fatal(err)
	}
	r.KillAndRestart(func(o *node.Options) { o.Extra = resolveRules })

	wantRestart(r, running.Pod, ifNotPresent(ref, "1"), "one")
	wantPins(r, ref, map[string]string{})
	pod := ifNotPresent(ref, "1")
	pod.Always = true
	wantRestart(r, running.Pod, pod, "two")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=1": second})
}
