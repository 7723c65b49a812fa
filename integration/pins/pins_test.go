package pins

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// wantPins fails the test unless a reference has exactly these pins: digests by scope.
func wantPins(r *testkit.Rig, ref string, want map[string]string) {
	r.T.Helper()
	got := map[string]string{}
	for scope, p := range r.Pins(ref) {
		got[scope] = p.Root.Digest
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.T.Errorf("pins of %s: got %v, want %v", ref, got, want)
	}
}

// revision returns the options of a pod of a workload's revision.
func revision(namespace, label, value string) node.PodOptions {
	return node.PodOptions{Namespace: namespace, Labels: map[string]string{label: value, "app": "app"}}
}

// TestNodePin checks that the first pull pins a tag for all targets of the node.
func TestNodePin(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	old := r.Version("node/app:v1", "old")
	ref := r.Reg.Ref("node/app:v1")
	r.WantVersion(node.KubeletPod{Image: ref}, "old")
	wantPins(r, ref, map[string]string{"node": old})
	if p := r.Pins(ref)["node"]; p.MadeBy != "use" || p.Retain || p.Drift != nil || len(p.History) > 0 || p.MadeAt.AsTime().IsZero() {
		t.Errorf("pin of the first use: got %v", p)
	}
	moved := r.Version("node/app:v1", "moved")
	for _, always := range []bool{false, true} {
		for _, handler := range []string{"", "native", "arm"} {
			for _, gate := range []bool{false, true} {
				res := r.WantVersion(node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref, Always: always, Gate: gate}, "old")
				r.MustRemovePod(res.Pod)
			}
		}
	}
	// A pull resolves the tag with one request and uses the pinned digest.
	r.Reg.Reset()
	r.MustPull(ref, "")
	r.WantRequests("a pull of a pinned image on the node", "HEAD manifest")
	if got := r.MustStatus(ref, "").GetRepoDigests(); !slices.Equal(got, []string{r.Reg.Ref("node/app@" + old)}) {
		t.Errorf("ImageStatus after the tag moved: got %q", got)
	}
	if p := r.Pins(ref)["node"]; p.Drift.GetDigest() != moved {
		t.Errorf("drift of the pin: got %v, want %s", p.Drift, moved)
	}

	// The pin outlives the image and a crash.
	if err := r.RemovePods(r.Ctx); err != nil {
		t.Fatal(err)
	}
	if id := r.MustStatus(ref, "").GetId(); id != "" {
		r.MustRemove(id, "")
	}
	for id := range r.Listed() {
		r.MustRemove(id, "")
	}
	if err := r.GC(r.Ctx); err != nil {
		t.Fatal(err)
	}
	wantPins(r, ref, map[string]string{"node": old})
	r.KillAndRestart(nil)
	wantPins(r, ref, map[string]string{"node": old})
	if p := r.Pins(ref)["node"]; p.Drift.GetDigest() != moved {
		t.Errorf("drift of the pin after a crash: got %v, want %s", p.Drift, moved)
	}
	r.MustRemovePod(r.WantVersion(node.KubeletPod{Image: ref}, "old").Pod)
	if err := r.Restart(r.Ctx, nil); err != nil {
		t.Fatal(err)
	}
	r.WantVersion(node.KubeletPod{PodOptions: node.PodOptions{Handler: "arm"}, Image: ref, Gate: true}, "old")

	// Without the pin, the tag follows the registry.
	if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "moved")
	wantPins(r, ref, map[string]string{"node": moved})
}

// TestWorkloadPins checks that each revision of a workload keeps the digest that its first pod ran.
func TestWorkloadPins(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	const deployment, set = "pod-template-hash", "controller-revision-hash"
	one := r.Version("workload/app:v1", "one")
	ref := r.Reg.Ref("workload/app:v1")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", deployment, "r1"), Image: ref}, "one")
	// Pods without a revision are not pinned.
	r.WantVersion(node.KubeletPod{Image: ref}, "one")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=r1": one})
	two := r.Version("workload/app:v1", "two")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", deployment, "r2"), Image: ref, Always: true}, "two")
	three := r.Version("workload/app:v1", "three")
	// The same hash in another namespace or label is another scope.
	r.WantVersion(node.KubeletPod{PodOptions: revision("till", deployment, "r1"), Image: ref, Always: true}, "three")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", set, "r1"), Image: ref, Always: true}, "three")
	wantPins(r, ref, map[string]string{
		"workload/shop/pod-template-hash=r1": one, "workload/shop/pod-template-hash=r2": two,
		"workload/till/pod-template-hash=r1": three, "workload/shop/controller-revision-hash=r1": three,
	})
	for _, p := range r.Pins(ref) {
		if p.Root.Digest == three && p.Drift != nil || p.Root.Digest != three && p.Drift.GetDigest() != three {
			t.Errorf("drift of the pin in scope %s: got %v; the tag is at %s", p.Scope, p.Drift, three)
		}
	}
	checkRevisions := func() {
		t.Helper()
		for _, always := range []bool{false, true} {
			for _, handler := range []string{"", "arm"} {
				for hash, version := range map[string]string{"r1": "one", "r2": "two"} {
					opts := revision("shop", deployment, hash)
					opts.Handler = handler
					r.MustRemovePod(r.WantVersion(node.KubeletPod{PodOptions: opts, Image: ref, Always: always}, version).Pod)
				}
			}
		}
	}
	checkRevisions()
	r.KillAndRestart(nil)
	checkRevisions()
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "three")
	checkRevisions()
}

// TestPinByContainer checks that a container makes the pin if its image is on the node, so that kubelet does not pull.
func TestPinByContainer(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	ref := r.Reg.Ref("workload/app:v1")
	one := r.Version("workload/app:v1", "one")
	r.MustPull(ref, "")
	r.MustRemovePod(r.MustPod(""))
	r.Reg.Reset()
	res := r.WantVersion(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, "one")
	if res.Pulled {
		t.Error("kubelet pulled an image that is on the node")
	}
	r.WantNoRequests("a pod whose image is on the node")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=r1": one})

	// The pull of another revision moves the tag. The pin stays, even if the image is fetched for another target.
	two := r.Version("workload/app:v1", "two")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r2"), Image: ref, Always: true}, "two")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, "one")
	opts := revision("shop", "pod-template-hash", "r1")
	opts.Handler = "arm"
	r.WantVersion(node.KubeletPod{PodOptions: opts, Image: ref}, "one")
	opts.Handler = "native"
	r.WantVersion(node.KubeletPod{PodOptions: opts, Image: ref}, "one")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=r1": one, "workload/shop/pod-template-hash=r2": two})

	// A container also makes a pin in scope node, and its content is retained.
	plain, kept := r.Reg.Ref("plain/app:v1"), r.Reg.Ref("kept/app:v1")
	three := r.Version("plain/app:v1", "three")
	r.MustPull(plain, "")
	if _, err := r.Ctr(r.Ctx, "images", "tag", plain, kept); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForImage(t, r.Node, kept)
	r.WantVersion(node.KubeletPod{Image: kept}, "three")
	wantPins(r, kept, map[string]string{"node": three})
	if len(retained(t, r)) != 1 {
		t.Error("the content of the pin is not retained")
	}
}

// TestRefusedContainerPinsNothing checks that a container makes no pin if a verifier refuses its image. If the image is
// ready for the container, it runs, as with stock containerd.
func TestRefusedContainerPinsNothing(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	v := testkit.NewVerifier(t, r.Node)
	ref := r.Reg.Ref("workload/app:v1")
	one := r.Version("workload/app:v1", "one")
	id := r.MustPull(ref, "")
	opts := revision("shop", "pod-template-hash", "r1")
	for _, handler := range []string{"native", "arm"} {
		opts.Handler = handler
		pod, err := r.RunPod(r.Ctx, opts)
		if err != nil {
			t.Fatal(err)
		}
		v.Refuse(true)
		if _, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: id, UserImage: ref}); err == nil || !strings.Contains(err.Error(), "nobody signed it") {
			t.Errorf("CreateContainer for handler %s: got error %v", handler, err)
		}
		wantPins(r, ref, map[string]string{})
		v.Refuse(false)
	}
	opts.Handler = ""
	pod, err := r.RunPod(r.Ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	v.Refuse(true)
	if _, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: id, UserImage: ref}); err != nil {
		t.Errorf("CreateContainer of an image that is ready: %v", err)
	}
	wantPins(r, ref, map[string]string{})
	v.Refuse(false)
	opts.Handler = "arm"
	if pod, err = r.RunPod(r.Ctx, opts); err != nil {
		t.Fatal(err)
	}
	if _, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: id, UserImage: ref}); err != nil {
		t.Fatal(err)
	}
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=r1": one})
}

// TestUnpinnedPullMovesNothing checks that a pull of a pod that opts out of a pin moves neither the pin nor the tag.
func TestUnpinnedPullMovesNothing(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	old := r.Version("open/app:v1", "old")
	ref := r.Reg.Ref("open/app:v1")
	id := r.MustPull(ref, "")
	wantPins(r, ref, map[string]string{"node": old})
	now := r.Version("open/app:v1", "now")
	off := map[string]string{"io.imagepin.version-consistency": "off"}
	pod, err := r.RunPod(r.Ctx, node.PodOptions{Annotations: off})
	if err != nil {
		t.Fatal(err)
	}
	other, err := r.PullWith(r.Ctx, ref, node.PullOptions{Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	if other == id {
		t.Error("a pod that opts out of the pin got the pinned image")
	}
	r.WantLine(pod, node.ContainerOptions{Image: other, UserImage: ref}, testkit.Line(images.Options{Version: "now"}, images.HostPlatform()))
	if got := r.MustStatus(ref, node.DefaultHandler).GetId(); got != id {
		t.Errorf("ImageStatus of the tag after the pull: got %s, want %s", got, id)
	}
	if img := testkit.State(t, r.Node).Images["k8s.io/"+ref]; img.Target.Digest.String() != old {
		t.Errorf("record of the tag after the pull: got %s, want %s", img.Target.Digest, old)
	}
	wantPins(r, ref, map[string]string{"node": old})
	if p := r.Pins(ref)["node"]; p.Drift.GetDigest() != now {
		t.Errorf("drift after the pull: got %v, want %s", p.Drift, now)
	}
	r.WantVersion(node.KubeletPod{Image: ref}, "old")
}

// TestDriftIsReported checks that each move of a pinned tag is reported once, in the pin, the log and an event. The
// drift ends when the tag returns.
func TestDriftIsReported(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	events, errs := r.Client().Subscribe(r.Ctx, `topic~="/imagepin/pin/.*"`)
	next := func(topic string) *api.PinEvent {
		t.Helper()
		select {
		case e := <-events:
			if e.Topic != topic || e.Namespace != node.Namespace {
				t.Fatalf("got event %s in namespace %s, want %s", e.Topic, e.Namespace, topic)
			}
			var event api.PinEvent
			if err := proto.Unmarshal(e.Event.GetValue(), &event); err != nil {
				t.Fatal(err)
			}
			return &event
		case err := <-errs:
			t.Fatal(err)
		case <-r.Ctx.Done():
			t.Fatalf("timed out waiting for event %s", topic)
		}
		return nil
	}
	one := r.Version("node/app:v1", "one")
	ref := r.Reg.Ref("node/app:v1")
	r.MustPull(ref, "")
	if e := next("/imagepin/pin/made"); e.Pin.GetRef() != ref || e.Pin.GetRoot().GetDigest() != one {
		t.Errorf("event made: got %v", e)
	}
	for _, version := range []string{"two", "three"} {
		d := r.Version("node/app:v1", version)
		for range 3 {
			r.MustPull(ref, "")
		}
		if e := next("/imagepin/pin/drifted"); e.Pin.GetDrift().GetDigest() != d || e.Pin.GetRoot().GetDigest() != one {
			t.Errorf("event drifted: got %v", e)
		}
		if p := r.Pins(ref)["node"]; p.Drift.GetDigest() != d || p.Drift.GetSince().AsTime().IsZero() {
			t.Errorf("drift: got %v", p.Drift)
		}
	}
	r.Version("node/app:v1", "one")
	r.MustPull(ref, "")
	if p := r.Pins(ref)["node"]; p.Drift != nil {
		t.Errorf("drift after the tag returned: got %v, want none", p.Drift)
	}
	if got := strings.Count(r.Logs(), "a pinned tag has moved in its registry"); got != 2 {
		t.Errorf("got %d log lines for 2 moves", got)
	}
	// There were no other events: the next one is the removal.
	if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref, Scope: "node"}); err != nil {
		t.Fatal(err)
	}
	next("/imagepin/pin/removed")
}

// TestRacingFirstPulls checks two first pulls that get different digests from the registry: both get the pinned one.
func TestRacingFirstPulls(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	for i := range 5 {
		repo := fmt.Sprintf("node/race%d", i)
		digests := []string{r.Version(repo+":v1", "one of "+repo), r.Version(repo+":v1", "two of "+repo)}
		arrived := make(chan struct{})
		var mu sync.Mutex
		heads := 0
		r.Reg.SetFault(func(q registry.Request) *registry.Fault {
			if q.Method != http.MethodHead {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			d := digests[heads%2]
			if heads++; heads == 2 {
				close(arrived)
			}
			return &registry.Fault{Hang: arrived, Status: http.StatusOK, Header: http.Header{
				"Content-Type": {"application/vnd.oci.image.index.v1+json"}, "Docker-Content-Digest": {d},
				"Content-Length": {fmt.Sprint(size(r, repo, d))},
			}}
		})
		ref := r.Reg.Ref(repo + ":v1")
		// Pulls with different credentials are not merged.
		other := testkit.Async(func() (string, error) { return r.PullWith(r.Ctx, ref, node.PullOptions{Auth: testkit.AsAlice()}) })
		a, err := r.Pull(r.Ctx, ref, "")
		b, err2 := other()
		if err != nil || err2 != nil || a != b {
			t.Fatalf("first pulls: got %q and %q (%v, %v), want equal IDs", a, b, err, err2)
		}
		r.Reg.SetFault(nil)
		p := r.Pins(ref)["node"]
		if !slices.Contains(digests, p.GetRoot().GetDigest()) {
			t.Errorf("got pin %v, want a digest of %q", p, digests)
		}
		if got := r.MustStatus(ref, "").GetRepoDigests(); !slices.Equal(got, []string{r.Reg.Ref(repo + "@" + p.Root.Digest)}) {
			t.Errorf("ImageStatus: got %q, want the pinned digest %s", got, p.Root.Digest)
		}
	}
}

// size returns the size of a manifest in the registry.
func size(r *testkit.Rig, repo, digest string) int64 {
	resp, err := http.Get(r.Reg.URL() + "/v2/" + repo + "/manifests/" + digest)
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	return resp.ContentLength
}

// retained returns the leases that protect retained content.
func retained(t *testing.T, r *testkit.Rig) []string {
	t.Helper()
	var leases []string
	for name := range testkit.State(t, r.Node).Leases {
		if strings.HasPrefix(name, "k8s.io/imagepin-retain-") {
			leases = append(leases, name)
		}
	}
	return leases
}

// TestRetain checks that retained content survives removals on the node and in the registry until the pin is removed.
func TestRetain(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard=%t", discard), func(t *testing.T) {
			r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets, DiscardUnpackedLayers: discard})
			r.MustRemovePod(r.MustPod(""))
			if err := r.GC(r.Ctx); err != nil {
				t.Fatal(err)
			}
			before := testkit.State(t, r.Node)
			d := r.Version("kept/app:v1", "kept")
			ref := r.Reg.Ref("kept/app:v1")
			pod := r.WantVersion(node.KubeletPod{Image: ref}, "kept").Pod
			r.MustPull(ref, "arm")
			r.MustRemovePod(pod)
			wantRetained := func() {
				t.Helper()
				for _, handler := range []string{"runc", "arm"} {
					if img := r.MustStatus(ref, handler); img == nil || !img.Pinned {
						t.Errorf("ImageStatus for handler %s: got %v, want it pinned", handler, img)
					}
				}
				for _, img := range r.Listed() {
					if !img.Pinned {
						t.Errorf("ListImages: %s is not pinned", img.Id)
					}
				}
			}
			wantRetained()
			if err := r.Reg.Delete("kept/app@" + d); err != nil {
				t.Fatal(err)
			}
			for id := range r.Listed() {
				r.MustRemove(id, "")
			}
			r.KillAndRestart(nil)
			if err := r.GC(r.Ctx); err != nil {
				t.Fatal(err)
			}
			if n := len(retained(t, r)); n != 2 {
				t.Errorf("got %d leases, want 2, one for each manifest", n)
			}
			// The pin has the digest and the lease protects the content: each pull sends only a HEAD request.
			r.Version("kept/app:v1", "another")
			r.Reg.Reset()
			for _, handler := range []string{"", "arm"} {
				r.MustRemovePod(r.WantVersion(node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref}, "kept").Pod)
			}
			r.WantRequests("pulls of a retained image", "HEAD manifest", "HEAD manifest")
			wantRetained()
			r.Reg.Down()
			for _, handler := range []string{"", "arm"} {
				r.MustRemovePod(r.WantVersion(node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref, Always: true, Gate: true}, "kept").Pod)
			}
			for id := range r.Listed() {
				r.MustRemove(id, "")
			}
			if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref}); err != nil {
				t.Fatal(err)
			}
			testkit.NoLeaks(t, r.Node, before)
		})
	}
}

// TestPinLimits checks the limits of pins and of retained content. A new pin evicts the least recently used pin that is
// not in use. If it cannot, or the content is too large, the call fails and nothing is lost.
func TestPinLimits(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules + `
[plugins."io.containerd.imagepin.v1.images"]
max_pins_per_namespace = 2
max_retained_bytes = 3000000
`})
	full := testkit.Failure{Name: "PinLimitReached", Code: codes.ResourceExhausted}
	big := testkit.Failure{Name: "RetainLimitReached", Code: codes.ResourceExhausted}
	one := r.Version("workload/app:v1", "one")
	ref := r.Reg.Ref("workload/app:v1")
	scope := func(namespace, hash string) string { return "workload/" + namespace + "/pod-template-hash=" + hash }
	pull := func(namespace, hash string) error {
		pod := &node.Pod{Config: r.PodConfig(revision(namespace, "pod-template-hash", hash))}
		_, err := r.PullWith(r.Ctx, ref, node.PullOptions{Pod: pod})
		return err
	}
	pods := make(map[string]*node.Pod)
	for _, hash := range []string{"a", "b"} {
		pods[hash] = r.WantVersion(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", hash), Image: ref}, "one").Pod
	}
	full.Check(t, pull("shop", "c"), ref, testkit.TargetOf(""))
	if err := pull("shop", "a"); err != nil {
		t.Errorf("pull with an existing pin: %v", err)
	}
	if err := pull("till", "c"); err != nil {
		t.Errorf("pull in another namespace: %v", err)
	}
	wantPins(r, ref, map[string]string{scope("shop", "a"): one, scope("shop", "b"): one, scope("till", "c"): one})
	r.MustRemovePod(pods["a"])
	for _, hash := range []string{"c", "d"} { // no pod uses these pins
		if err := pull("shop", hash); err != nil {
			t.Errorf("pull that can evict a pin: %v", err)
		}
	}
	wantPins(r, ref, map[string]string{scope("shop", "b"): one, scope("shop", "d"): one, scope("till", "c"): one})
	r.KillAndRestart(nil)
	if err := pull("shop", "e"); err != nil {
		t.Errorf("pull after a restart: %v", err)
	}
	wantPins(r, ref, map[string]string{scope("shop", "b"): one, scope("shop", "e"): one, scope("till", "c"): one})

	// Pins in scope node count against the namespace of the pod that made them, so that no tenant fills the node's cap.
	nodePull := func(namespace, name string) error {
		r.Version("node/"+name+":v1", name)
		_, err := r.PullWith(r.Ctx, r.Reg.Ref("node/"+name+":v1"), node.PullOptions{Pod: &node.Pod{Config: r.PodConfig(node.PodOptions{Namespace: namespace})}})
		return err
	}
	for _, name := range []string{"system-1", "system-2"} {
		r.Version("node/"+name+":v1", name)
		r.MustPull(r.Reg.Ref("node/"+name+":v1"), "")
	}
	for _, name := range []string{"mine-1", "mine-2", "mine-3"} {
		if err := nodePull("filler", name); err != nil {
			t.Errorf("pull with a pin in scope node: %v", err)
		}
	}
	var left []string
	for _, name := range []string{"system-1", "system-2", "mine-1", "mine-2", "mine-3"} {
		if len(r.Pins(r.Reg.Ref("node/"+name+":v1"))) > 0 {
			left = append(left, name)
		}
	}
	if !slices.Equal(left, []string{"system-1", "system-2", "mine-2", "mine-3"}) {
		t.Errorf("pins in scope node: got %q", left)
	}
	for _, name := range []string{"system-1", "system-2"} {
		if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: r.Reg.Ref("node/" + name + ":v1")}); err != nil {
			t.Fatal(err)
		}
	}

	small := r.Version("kept/small:v1", "small")
	r.MustPull(r.Reg.Ref("kept/small:v1"), "")
	if len(retained(t, r)) != 1 {
		t.Fatal("the image is not retained")
	}
	_, d := r.Push("kept/big:v1", images.Options{Version: "big", Random: []images.Random{{Size: 4 << 20}}}, images.HostPlatform())
	_, err := r.Pull(r.Ctx, r.Reg.Ref("kept/big:v1"), "")
	big.Check(t, err, r.Reg.Ref("kept/big:v1"), testkit.TargetOf(""))
	if len(retained(t, r)) != 1 {
		t.Error("an image above the limit is retained")
	}
	wantPins(r, r.Reg.Ref("kept/small:v1"), map[string]string{"node": small})

	// The same image can be used without retaining it. SetPin fails in the same way and makes no pin.
	r.Push("free/big:v1", images.Options{Version: "big", Random: []images.Random{{Size: 4 << 20}}}, images.HostPlatform())
	free := r.Reg.Ref("free/big:v1")
	r.MustPull(free, "")
	_, d, _ = strings.Cut(d, "@")
	wantPins(r, r.Reg.Ref("kept/big:v1"), map[string]string{})
	_, err = r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: free, Digest: d, Retain: proto.Bool(true)})
	if err == nil || !strings.Contains(err.Error(), "RetainLimitReached") {
		t.Errorf("SetPin above the limit: got error %v", err)
	}
	wantPins(r, free, map[string]string{})
	if len(retained(t, r)) != 1 {
		t.Error("a pin that was not set retains content")
	}
}

// TestNoLongerRetained checks that a pin keeps its retention if it is set again, and releases its content if it no longer
// retains it.
func TestNoLongerRetained(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	d := r.Version("app:v1", "one")
	ref := r.Reg.Ref("app:v1")
	r.MustPull(ref, "")
	for _, step := range []struct {
		flags  []string
		retain bool
	}{
		{nil, false}, {[]string{"--retain"}, true}, {nil, true}, {[]string{"--retain=false"}, false},
	} {
		out, code := r.Operator(append([]string{"pin", "set", ref, d}, step.flags...)...)
		if code != 0 || strings.Contains(out, "retained") != step.retain {
			t.Errorf("pin set %q: exit code %d, printed %q", step.flags, code, out)
		}
		if held := len(retained(t, r)) == 1; held != step.retain || r.MustStatus(ref, "").GetPinned() != step.retain {
			t.Errorf("pin set %q: got lease %t, pinned %t", step.flags, held, r.MustStatus(ref, "").GetPinned())
		}
	}
}
