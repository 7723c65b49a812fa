package pins

import (
	"net/http"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// resolveRules resolve the tags of new revisions of references below shop/.
const resolveRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/shop/**"]
version_consistency = "workload"
new_revision = "resolve"
`

// head is the requests of a pull of a tag whose image is on the node.
var head = []string{"HEAD manifest"}

// pulled is those of a pull of another version of an App image for one platform.
var pulled = []string{"GET blob", "GET blob", "GET manifest", "GET manifest", "HEAD manifest"}

// ifNotPresent returns a pod of a Deployment's revision with the pull policy IfNotPresent.
func ifNotPresent(ref, hash string) node.KubeletPod {
	return node.KubeletPod{Image: ref, PodOptions: revision("shop", "pod-template-hash", hash)}
}

func wantPulled(t *testing.T, what string, res *node.KubeletResult, want bool) {
	t.Helper()
	if res.Pulled != want {
		t.Errorf("%s: got a pull %t, want %t", what, res.Pulled, want)
	}
}

// TestNewRevisionResolves overwrites a tag. With IfNotPresent, the next revision runs the new build, and the pods of both revisions keep
// theirs. Only the first pod of a revision sends a request, also after a restart.
func TestNewRevisionResolves(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: resolveRules})
	ref := r.Reg.Ref("shop/cart:v1")
	first := r.Version("shop/cart:v1", "one")
	wantPulled(t, "not on the node", r.WantVersion(ifNotPresent(ref, "1"), "one"), true)
	r.Reg.Reset()
	wantPulled(t, "the same tag", r.WantVersion(ifNotPresent(ref, "2"), "one"), true)
	r.WantRequests("a new revision of an image on the node", head...)
	second := r.Version("shop/cart:v1", "two")
	r.Reg.Reset()
	wantPulled(t, "an old revision", r.WantVersion(ifNotPresent(ref, "1"), "one"), false)
	r.WantNoRequests("a revision with a pin")
	wantPulled(t, "a new revision", r.WantVersion(ifNotPresent(ref, "3"), "two"), true)
	r.WantRequests("the new build", pulled...)
	r.KillAndRestart(nil)
	r.Reg.Reset()
	for hash, version := range map[string]string{"1": "one", "2": "one", "3": "two"} {
		wantPulled(t, "after a restart", r.WantVersion(ifNotPresent(ref, hash), version), false)
	}
	r.WantNoRequests("revisions with pins")
	wantPins(r, ref, map[string]string{
		"workload/shop/pod-template-hash=1": first, "workload/shop/pod-template-hash=2": first, "workload/shop/pod-template-hash=3": second,
	})
	r.WantOperator(0, []string{"resolve", ref}, "new_revision resolve")
}

// TestNewRevisionWithoutRegistry runs the build of the node while the registry is away. It pins nothing, and logs each use once, so that
// the next start gets the new build.
func TestNewRevisionWithoutRegistry(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: resolveRules})
	ref := r.Reg.Ref("shop/cart:v1")
	first := r.Version("shop/cart:v1", "one")
	r.WantVersion(ifNotPresent(ref, "1"), "one")
	second := r.Version("shop/cart:v1", "two")
	r.Reg.SetFault(func(registry.Request) *registry.Fault { return &registry.Fault{Status: http.StatusServiceUnavailable} })
	pod := ifNotPresent(ref, "2")
	pod.Unresolved = true
	offset := r.LogOffset()
	res := r.WantVersion(pod, "one")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=1": first})
	const warning = "no registry has resolved the tag of a new revision"
	if n := strings.Count(r.LogsSince(offset), warning); n != 1 {
		t.Errorf("got %d warnings %q, want one", n, warning)
	}
	status, err := res.Container.Status(r.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	if a := status.GetImage().GetAnnotations(); len(a) > 0 {
		t.Errorf("the status of the container shows annotations %v", a)
	}

	// The registry is back. A container of the pod that was not resolved does not decide.
	r.Reg.SetFault(nil)
	r.Reg.Reset()
	again, err := r.ImageAsKubelet(r.Ctx, ifNotPresent(ref, "2"), &node.KubeletResult{Pod: res.Pod})
	if err != nil {
		t.Fatal(err)
	}
	r.WantLine(res.Pod, again, testkit.Line(images.Options{Version: "two"}, images.HostPlatform()))
	r.WantRequests("the next start", pulled...)
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=1": first, "workload/shop/pod-template-hash=2": second})
}

// TestNewRevisionOfRunningPod switches the rule on while a pod runs. Its containers, and its image volumes, keep their build, which
// becomes that of the revision, also if kubelet pulls.
func TestNewRevisionOfRunningPod(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref, volume := r.Reg.Ref("shop/cart:v1"), r.Reg.Ref("shop/data:v1")
	first, data := r.Version("shop/cart:v1", "one"), r.Version("shop/data:v1", "data one")
	id := r.MustPull(volume, "")
	pod := ifNotPresent(ref, "1")
	pod.Container.Mounts = []*cri.Mount{{ContainerPath: "/volume", Readonly: true, Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: volume}}}
	running := r.WantVersion(pod, "one")
	r.WantVersion(ifNotPresent(ref, "2"), "one")
	r.Version("shop/cart:v1", "two")
	r.Version("shop/data:v1", "data two")
	r.KillAndRestart(func(o *node.Options) { o.Extra = resolveRules })
	r.MustPull(ref, "") // another pod has pulled the new build

	r.Reg.Reset()
	restarted := &node.KubeletResult{Pod: running.Pod}
	opts, err := r.ImageAsKubelet(r.Ctx, ifNotPresent(ref, "1"), restarted)
	if err != nil {
		t.Fatal(err)
	}
	wantPulled(t, "a container that starts again", restarted, false)
	again := ifNotPresent(volume, "1")
	if _, err := r.ImageAsKubelet(r.Ctx, again, restarted); err != nil || restarted.Pulled || restarted.ImageID != id {
		t.Errorf("the volume: got %s, pulled %t, %v, want %s", restarted.ImageID, restarted.Pulled, err, id)
	}
	opts.Mounts = pod.Container.Mounts
	r.WantLine(running.Pod, opts, testkit.Line(images.Options{Version: "one"}, images.HostPlatform()))
	r.WantNoRequests("a pod that runs")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=1": first})
	wantPins(r, volume, map[string]string{"workload/shop/pod-template-hash=1": data})

	wantPulled(t, "a new pod", r.WantVersion(ifNotPresent(ref, "3"), "two"), true)
}

// TestNewRevisionOfRunningPodThatPulls is a pod whose kubelet pulls, although the image is on the node: the pod keeps its build.
func TestNewRevisionOfRunningPodThatPulls(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref := r.Reg.Ref("shop/cart:v1")
	first := r.Version("shop/cart:v1", "one")
	running := r.WantVersion(ifNotPresent(ref, "1"), "one")
	r.Version("shop/cart:v1", "two")
	r.KillAndRestart(func(o *node.Options) { o.Extra = resolveRules })
	pod := ifNotPresent(ref, "1")
	pod.Always = true
	opts, err := r.ImageAsKubelet(r.Ctx, pod, running)
	if err != nil {
		t.Fatal(err)
	}
	r.WantLine(running.Pod, opts, testkit.Line(images.Options{Version: "one"}, images.HostPlatform()))
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=1": first})
}
