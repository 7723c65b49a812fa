package pins

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// shared limits the retained content to 12 MB, and pins and retains references below tenant/ for the revisions of workloads.
const shared = `
[plugins."io.containerd.imagepin.v1.images"]
max_retained_bytes = 12000000
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/tenant/**"]
version_consistency = "workload"
retain = true
`

// TestRetainedBytesAreShared has a namespace that declares a layer of more than half of max_retained_bytes and sends it slowly, and
// then fills the limit with pins whose pods are gone. Other namespaces retain their images meanwhile, and what a pod uses stays.
func TestRetainedBytesAreShared(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: shared})
	full := testkit.Failure{Name: "RetainLimitReached", Code: codes.ResourceExhausted}
	seed := uint64(0)
	// push pushes an image with a layer of a size, and returns its reference and the digest of that layer.
	push := func(name string, size int64) (ref string, layer string) {
		t.Helper()
		seed++
		app := testkit.App(t, images.Options{Version: name, Random: []images.Random{{Size: size, Seed: seed}}})
		layers, err := app.Layers()
		if err != nil {
			t.Fatal(err)
		}
		d, err := layers[len(layers)-1].Digest()
		if err != nil {
			t.Fatal(err)
		}
		ref, _ = r.PushImage("tenant/"+name+":v1", app)
		return ref, d.String()
	}
	start := func(namespace, ref, version string) *node.Pod {
		t.Helper()
		return r.WantVersion(node.KubeletPod{PodOptions: revision(namespace, "pod-template-hash", version), Image: ref}, version).Pod
	}
	pull := func(namespace, ref string) error {
		_, err := r.PullWith(r.Ctx, ref, node.PullOptions{Pod: &node.Pod{Config: r.PodConfig(revision(namespace, "pod-template-hash", "x"))}})
		return err
	}
	isPinned := func(ref string) bool { return len(r.Pins(ref)) > 0 }

	slow, layer := push("slow", 7_000_000)
	release := make(chan struct{})
	begun := registry.Fault{Hang: release, After: 100_000}
	ofSlow := func(q registry.Request) bool { return q.Method == "GET" && q.Reference == layer }
	r.Reg.SetFault(registry.FaultIf(begun, ofSlow))
	ended := testkit.Async(func() (string, error) { return "", pull("evil", slow) })
	testkit.AwaitRequest(t, r.Reg, ofSlow)
	more, _ := push("more", 3_000_000)
	full.Check(t, pull("evil", more), more, testkit.TargetOf("")) // its own share is three quarters
	shop, _ := push("shop", 6_000_000)
	pod := start("shop", shop, "shop")
	held := retained(t, r)
	if len(held) != 1 || !r.MustStatus(shop, node.DefaultHandler).GetPinned() {
		t.Errorf("while another namespace pulls slowly: got leases %q, want that of %s", held, shop)
	}
	close(release)
	if _, err := ended(); err != nil {
		t.Errorf("the slow pull: %v", err)
	}
	if now := retained(t, r); len(now) != 1 || now[0] != held[0] {
		t.Errorf("after the slow pull, which has no room any more: got leases %q, want %q", now, held)
	}

	var gone []string
	for _, name := range []string{"gone1", "gone2"} {
		ref, _ := push(name, 1_300_000)
		r.MustRemovePod(start("evil", ref, name))
		gone = append(gone, ref)
	}
	if n := len(retained(t, r)); n != 3 {
		t.Errorf("got %d leases, want 3", n)
	}
	team, _ := push("team", 1_200_000)
	r.MustRemovePod(start("team", team, "team"))
	if !isPinned(team) || !r.MustStatus(team, node.DefaultHandler).GetPinned() {
		t.Errorf("%s is not retained", team)
	}
	if isPinned(gone[0]) || !isPinned(gone[1]) {
		t.Errorf("pins of the namespace that had the most: %v and %v, want only the last one", isPinned(gone[0]), isPinned(gone[1]))
	}
	if !isPinned(shop) || len(retained(t, r)) != 3 {
		t.Errorf("the pin of a running pod is left: %v; leases %q", isPinned(shop), retained(t, r))
	}
	r.MustRemovePod(pod)
}
