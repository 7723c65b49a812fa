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

// wantPins fails the test unless a reference has just these pins, by scope.
func wantPins(r *testkit.Rig, ref string, want map[string]string) {
	r.T.Helper()
	got := map[string]string{}
	for scope, p := range r.Pins(ref) {
		got[scope] = p.Root.Digest
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.T.Errorf("%s is pinned %v, not %v", ref, got, want)
	}
}

// revision is a pod of a revision of a workload.
func revision(namespace, label, value string) node.PodOptions {
	return node.PodOptions{Namespace: namespace, Labels: map[string]string{label: value, "app": "app"}}
}

// TestNodePin pins a tag by the first pull, and runs what it meant then for every target, whatever the tag means later.
func TestNodePin(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	old := r.Version("node/app:v1", "old")
	ref := r.Reg.Ref("node/app:v1")
	r.WantVersion(node.KubeletPod{Image: ref}, "old")
	wantPins(r, ref, map[string]string{"node": old})
	if p := r.Pins(ref)["node"]; p.MadeBy != "use" || p.Retain || p.Drift != nil || len(p.History) > 0 || p.MadeAt.AsTime().IsZero() {
		t.Errorf("the pin of a first use is %v", p)
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
	// A pull asks for the tag once and runs the pinned digest.
	r.Reg.Reset()
	r.MustPull(ref, "")
	r.WantRequests("a pull of a pinned tag that is here", "HEAD manifest")
	if got := r.MustStatus(ref, "").GetRepoDigests(); !slices.Equal(got, []string{r.Reg.Ref("node/app@" + old)}) {
		t.Errorf("ImageStatus says %q after the tag moved", got)
	}
	if p := r.Pins(ref)["node"]; p.Drift.GetDigest() != moved {
		t.Errorf("the drift of the pin is %v, not to %s", p.Drift, moved)
	}

	// It is still what the tag means when the image is gone, and containerd was killed.
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
		t.Errorf("the drift of the pin is %v after a crash, not to %s", p.Drift, moved)
	}
	r.MustRemovePod(r.WantVersion(node.KubeletPod{Image: ref}, "old").Pod)
	if err := r.Restart(r.Ctx, nil); err != nil {
		t.Fatal(err)
	}
	r.WantVersion(node.KubeletPod{PodOptions: node.PodOptions{Handler: "arm"}, Image: ref, Gate: true}, "old")

	// Without the pin the tag means what the registry says.
	if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "moved")
	wantPins(r, ref, map[string]string{"node": moved})
}

// TestWorkloadPins gives every revision of a workload what its first pod ran, while others have other digests of the same tag.
func TestWorkloadPins(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	const deployment, set = "pod-template-hash", "controller-revision-hash"
	one := r.Version("workload/app:v1", "one")
	ref := r.Reg.Ref("workload/app:v1")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", deployment, "r1"), Image: ref}, "one")
	// Pods of no revision are as without consistency.
	r.WantVersion(node.KubeletPod{Image: ref}, "one")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=r1": one})
	two := r.Version("workload/app:v1", "two")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", deployment, "r2"), Image: ref, Always: true}, "two")
	three := r.Version("workload/app:v1", "three")
	// The same hash in another namespace, and by another label, are others.
	r.WantVersion(node.KubeletPod{PodOptions: revision("till", deployment, "r1"), Image: ref, Always: true}, "three")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", set, "r1"), Image: ref, Always: true}, "three")
	wantPins(r, ref, map[string]string{
		"workload/shop/pod-template-hash=r1": one, "workload/shop/pod-template-hash=r2": two,
		"workload/till/pod-template-hash=r1": three, "workload/shop/controller-revision-hash=r1": three,
	})
	for _, p := range r.Pins(ref) {
		if p.Root.Digest == three && p.Drift != nil || p.Root.Digest != three && p.Drift.GetDigest() != three {
			t.Errorf("the pin of %s has drift %v although the tag means %s", p.Scope, p.Drift, three)
		}
	}
	again := func() {
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
	again()
	r.KillAndRestart(nil)
	again()
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "three")
	again()
}

// TestPinByContainer makes the pin where kubelet does not pull: the image is here before the first pod of the revision.
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
		t.Error("kubelet pulled what is here")
	}
	r.WantNoRequests("a pod whose image is here")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=r1": one})

	// The image moves with a pull that is nobody's; the revision does not, nor where it has to be fetched for another target.
	two := r.Version("workload/app:v1", "two")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r2"), Image: ref, Always: true}, "two")
	r.WantVersion(node.KubeletPod{PodOptions: revision("shop", "pod-template-hash", "r1"), Image: ref}, "one")
	opts := revision("shop", "pod-template-hash", "r1")
	opts.Handler = "arm"
	r.WantVersion(node.KubeletPod{PodOptions: opts, Image: ref}, "one")
	opts.Handler = "native"
	r.WantVersion(node.KubeletPod{PodOptions: opts, Image: ref}, "one")
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=r1": one, "workload/shop/pod-template-hash=r2": two})

	// So is a node's pin, and what it retains is held.
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
		t.Error("what a pin of a container retains is not held")
	}
}

// TestRefusedContainerPinsNothing creates a container for a target that the image has to be made ready for, which a verifier refuses.
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
			t.Errorf("for %s it says %v", handler, err)
		}
		wantPins(r, ref, map[string]string{})
		v.Refuse(false)
	}
	pod, err := r.RunPod(r.Ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: id, UserImage: ref}); err != nil {
		t.Fatal(err)
	}
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=r1": one})
}

// TestUnpinnedPullMovesNothing pulls a tag that is pinned for others: what it means for the pinned stays, by record too.
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
		t.Error("a pod that opts out of the pin gets what is pinned")
	}
	r.WantLine(pod, node.ContainerOptions{Image: other, UserImage: ref}, testkit.Line(images.Options{Version: "now"}, images.HostPlatform()))
	if got := r.MustStatus(ref, node.DefaultHandler).GetId(); got != id {
		t.Errorf("the pull has moved what the tag means to %s", got)
	}
	if img := testkit.State(t, r.Node).Images["k8s.io/"+ref]; img.Target.Digest.String() != old {
		t.Errorf("the pull has moved the record of the tag to %s", img.Target.Digest)
	}
	wantPins(r, ref, map[string]string{"node": old})
	if p := r.Pins(ref)["node"]; p.Drift.GetDigest() != now {
		t.Errorf("the drift that the pull has seen is %v", p.Drift)
	}
	r.WantVersion(node.KubeletPod{Image: ref}, "old")
}

// TestDriftIsTold once for every change: in the pin, in the log and as an event; and it ends when the tag comes back.
func TestDriftIsTold(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	events, errs := r.Client().Subscribe(r.Ctx, `topic~="/imagepin/pin/.*"`)
	next := func(topic string) *api.PinEvent {
		t.Helper()
		select {
		case e := <-events:
			if e.Topic != topic || e.Namespace != node.Namespace {
				t.Fatalf("the event is %s in %s, not %s", e.Topic, e.Namespace, topic)
			}
			var told api.PinEvent
			if err := proto.Unmarshal(e.Event.GetValue(), &told); err != nil {
				t.Fatal(err)
			}
			return &told
		case err := <-errs:
			t.Fatal(err)
		case <-r.Ctx.Done():
			t.Fatalf("no event %s", topic)
		}
		return nil
	}
	one := r.Version("node/app:v1", "one")
	ref := r.Reg.Ref("node/app:v1")
	r.MustPull(ref, "")
	if e := next("/imagepin/pin/made"); e.Pin.GetRef() != ref || e.Pin.GetRoot().GetDigest() != one {
		t.Errorf("the event is %v", e)
	}
	for _, version := range []string{"two", "three"} {
		d := r.Version("node/app:v1", version)
		for range 3 {
			r.MustPull(ref, "")
		}
		if e := next("/imagepin/pin/drift"); e.Pin.GetDrift().GetDigest() != d || e.Pin.GetRoot().GetDigest() != one {
			t.Errorf("the event is %v", e)
		}
		if p := r.Pins(ref)["node"]; p.Drift.GetDigest() != d || p.Drift.GetSince().AsTime().IsZero() {
			t.Errorf("the drift is %v", p.Drift)
		}
	}
	r.Version("node/app:v1", "one")
	r.MustPull(ref, "")
	if p := r.Pins(ref)["node"]; p.Drift != nil {
		t.Errorf("the tag is back, and the drift is %v", p.Drift)
	}
	if got := strings.Count(r.Logs(), "a pinned tag has moved in its registry"); got != 2 {
		t.Errorf("two changes are logged %d times", got)
	}
	// Nothing else was told: what comes next is the removal.
	if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref, Scope: "node"}); err != nil {
		t.Fatal(err)
	}
	next("/imagepin/pin/removed")
}

// TestRacingFirstPulls has two first pulls that the registry tells different digests: one makes the pin, and both run it.
func TestRacingFirstPulls(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	for i := range 5 {
		repo := fmt.Sprintf("node/race%d", i)
		digests := []string{r.Version(repo+":v1", "one of "+repo), r.Version(repo+":v1", "two of "+repo)}
		arrived := make(chan struct{})
		var mu sync.Mutex
		asked := 0
		r.Reg.SetFault(func(q registry.Request) *registry.Fault {
			if q.Method != http.MethodHead {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			d := digests[asked%2]
			if asked++; asked == 2 {
				close(arrived)
			}
			return &registry.Fault{Hang: arrived, Status: http.StatusOK, Header: http.Header{
				"Content-Type": {"application/vnd.oci.image.index.v1+json"}, "Docker-Content-Digest": {d},
				"Content-Length": {fmt.Sprint(size(r, repo, d))},
			}}
		})
		ref := r.Reg.Ref(repo + ":v1")
		// Another credential makes another question of it.
		other := testkit.Async(func() (string, error) { return r.PullWith(r.Ctx, ref, node.PullOptions{Auth: testkit.AsAlice()}) })
		a, err := r.Pull(r.Ctx, ref, "")
		b, err2 := other()
		if err != nil || err2 != nil || a != b {
			t.Fatalf("the two first pulls give %q and %q (%v, %v)", a, b, err, err2)
		}
		r.Reg.SetFault(nil)
		p := r.Pins(ref)["node"]
		if !slices.Contains(digests, p.GetRoot().GetDigest()) {
			t.Errorf("the pin is %v", p)
		}
		if got := r.MustStatus(ref, "").GetRepoDigests(); !slices.Equal(got, []string{r.Reg.Ref(repo + "@" + p.Root.Digest)}) {
			t.Errorf("the tag means %q, and the pin is %s", got, p.Root.Digest)
		}
	}
}

// size is that of a manifest in the registry.
func size(r *testkit.Rig, repo, digest string) int64 {
	resp, err := http.Get(r.Reg.URL() + "/v2/" + repo + "/manifests/" + digest)
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	return resp.ContentLength
}

// retained are the leases that hold what pins retain.
func retained(t *testing.T, r *testkit.Rig) []string {
	t.Helper()
	var held []string
	for name := range testkit.State(t, r.Node).Leases {
		if strings.HasPrefix(name, "k8s.io/imagepin-retain-") {
			held = append(held, name)
		}
	}
	return held
}

// TestRetain keeps what is pinned through its removal and a registry that has deleted it, until the pin goes.
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
			pinned := func() {
				t.Helper()
				for _, handler := range []string{"runc", "arm"} {
					if img := r.MustStatus(ref, handler); img == nil || !img.Pinned {
						t.Errorf("ImageStatus for %s: %v", handler, img)
					}
				}
				for _, img := range r.Listed() {
					if !img.Pinned {
						t.Errorf("ListImages: %s is not pinned", img.Id)
					}
				}
			}
			pinned()
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
				t.Errorf("%d leases hold the two manifests", n)
			}
			// What it means is known by the pin, and it is here by the lease: all that is asked is what the tag means.
			r.Version("kept/app:v1", "another")
			r.Reg.Reset()
			for _, handler := range []string{"", "arm"} {
				r.MustRemovePod(r.WantVersion(node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref}, "kept").Pod)
			}
			r.WantRequests("what is retained", "HEAD manifest", "HEAD manifest")
			pinned()
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

// TestPinLimits refuses what would be too much, by name, and loses nothing: pins that are in use stay, and of those that are not, the one that
// was used longest ago makes room.
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
		t.Errorf("a pin that there is: %v", err)
	}
	if err := pull("till", "c"); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	wantPins(r, ref, map[string]string{scope("shop", "a"): one, scope("shop", "b"): one, scope("till", "c"): one})
	r.MustRemovePod(pods["a"])
	for _, hash := range []string{"c", "d"} { // neither is used but by its pull
		if err := pull("shop", hash); err != nil {
			t.Errorf("there is room: %v", err)
		}
	}
	wantPins(r, ref, map[string]string{scope("shop", "b"): one, scope("shop", "d"): one, scope("till", "c"): one})
	r.KillAndRestart(nil)
	if err := pull("shop", "e"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	wantPins(r, ref, map[string]string{scope("shop", "b"): one, scope("shop", "e"): one, scope("till", "c"): one})

	// Pins of the node scope count against the namespace of the pod that made them, and no tenant fills the node's cap.
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
			t.Errorf("a pull for the node scope: %v", err)
		}
	}
	var left []string
	for _, name := range []string{"system-1", "system-2", "mine-1", "mine-2", "mine-3"} {
		if len(r.Pins(r.Reg.Ref("node/"+name+":v1"))) > 0 {
			left = append(left, name)
		}
	}
	if !slices.Equal(left, []string{"system-1", "system-2", "mine-2", "mine-3"}) {
		t.Errorf("pins of the node scope are left of %q", left)
	}
	for _, name := range []string{"system-1", "system-2"} {
		if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: r.Reg.Ref("node/" + name + ":v1")}); err != nil {
			t.Fatal(err)
		}
	}

	small := r.Version("kept/small:v1", "small")
	r.MustPull(r.Reg.Ref("kept/small:v1"), "")
	if len(retained(t, r)) != 1 {
		t.Fatal("nothing is retained")
	}
	_, d := r.Push("kept/big:v1", images.Options{Version: "big", Random: []images.Random{{Size: 4 << 20}}}, images.HostPlatform())
	_, err := r.Pull(r.Ctx, r.Reg.Ref("kept/big:v1"), "")
	big.Check(t, err, r.Reg.Ref("kept/big:v1"), testkit.TargetOf(""))
	if len(retained(t, r)) != 1 {
		t.Error("what is too big is held")
	}
	wantPins(r, r.Reg.Ref("kept/small:v1"), map[string]string{"node": small})

	// It does not keep others from the same image. By hand it is the same, and the pin that was there stays.
	r.Push("free/big:v1", images.Options{Version: "big", Random: []images.Random{{Size: 4 << 20}}}, images.HostPlatform())
	free := r.Reg.Ref("free/big:v1")
	r.MustPull(free, "")
	_, d, _ = strings.Cut(d, "@")
	wantPins(r, r.Reg.Ref("kept/big:v1"), map[string]string{})
	_, err = r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: free, Digest: d, Retain: true})
	if err == nil || !strings.Contains(err.Error(), "RetainLimitReached") {
		t.Errorf("retaining too much by hand: %v", err)
	}
	wantPins(r, free, map[string]string{})
	if len(retained(t, r)) != 1 {
		t.Error("what was refused is held")
	}
}

// TestNoLongerRetained frees what a pin held when it only stops to retain.
func TestNoLongerRetained(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	d := r.Version("app:v1", "one")
	ref := r.Reg.Ref("app:v1")
	r.MustPull(ref, "")
	for _, retain := range []bool{true, false} {
		if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: ref, Digest: d, Retain: retain}); err != nil {
			t.Fatal(err)
		}
		if held := len(retained(t, r)) == 1; held != retain || r.MustStatus(ref, "").GetPinned() != retain {
			t.Errorf("retain=%t: held is %t, pinned %t", retain, held, r.MustStatus(ref, "").GetPinned())
		}
	}
}
