package pins

import (
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestRetainedComesBackOffline removes what a pin retains and pulls it again while the registry is down: whoever was let have it before gets it,
// over a crash too, and nobody else.
func TestRetainedComesBackOffline(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, DiscardUnpackedLayers: true})
	r.MustRemovePod(r.MustPod(""))
	r.Reg.SetAuth(&registry.Auth{Public: []string{"public/kept/*", testPause(r)}, Users: map[string]registry.User{
		"alice": {Password: testkit.AlicePassword, Repositories: []string{"**"}},
		"bob":   {Password: "bob's", Repositories: []string{"**"}},
	}})
	alice, bob := testkit.AsAlice(), &cri.AuthConfig{Username: "bob", Password: "bob's"}
	guessed := &cri.AuthConfig{Username: "alice", Password: "guessed"}
	r.Version("private/kept/app:v1", "private")
	r.Version("public/kept/app:v1", "public")
	byHand := r.Version("private/hand/app:v1", "by hand")
	private, public, hand := r.Reg.Ref("private/kept/app:v1"), r.Reg.Ref("public/kept/app:v1"), r.Reg.Ref("private/hand/app:v1")
	pull := func(ref string, auth *cri.AuthConfig) string {
		t.Helper()
		id, err := r.PullWith(r.Ctx, ref, node.PullOptions{Auth: auth})
		if err != nil {
			t.Errorf("pulling %s: %v", ref, err)
		}
		return id
	}
	ids := map[string]string{private: pull(private, alice), public: pull(public, nil), hand: pull(hand, alice)}
	// One that is retained later has the proofs that were there.
	if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: hand, Digest: byHand, Retain: true, Credential: &api.Credential{Username: "alice", Password: testkit.AlicePassword}}); err != nil {
		t.Fatal(err)
	}
	gone := func() {
		t.Helper()
		for id := range r.Listed() {
			r.MustRemove(id, "")
		}
		if err := r.GC(r.Ctx); err != nil {
			t.Fatal(err)
		}
	}
	r.Reg.Down()
	for range 2 {
		for ref, auth := range map[string]*cri.AuthConfig{private: alice, public: nil, hand: alice} {
			gone()
			if auth != nil { // who needs no credential may have any
				for _, other := range []*cri.AuthConfig{bob, guessed, nil} {
					_, err := r.PullWith(r.Ctx, ref, node.PullOptions{Auth: other})
					testkit.ManifestUnavailable.Check(t, err, ref, testkit.TargetOf(""))
				}
			}
			if got := pull(ref, auth); got != ids[ref] {
				t.Errorf("%s comes back as %q, not %s", ref, got, ids[ref])
			}
			if img := r.MustStatus(ref, "runc"); img.GetId() != ids[ref] || !img.GetPinned() {
				t.Errorf("%s is there as %v", ref, img)
			}
		}
		gone()
		r.KillAndRestart(nil)
	}
	pull(public, bob)
	pull(private, alice)
	r.WantRun("", private, testkit.Line(images.Options{Version: "private"}, images.HostPlatform()))

	// What a pin does not retain is not here, and has nobody's proof.
	gone()
	if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: private}); err != nil {
		t.Fatal(err)
	}
	_, err := r.PullWith(r.Ctx, private, node.PullOptions{Auth: alice})
	testkit.ManifestUnavailable.Check(t, err, private, testkit.TargetOf(""))
}

// testPause is the repository of the sandbox image.
func testPause(r *testkit.Rig) string {
	repo, _, _ := strings.Cut(strings.TrimPrefix(r.Options().SandboxImage, r.Reg.Host()+"/"), ":")
	return repo
}

// retainTwo has room for one image of two.
const retainTwo = testkit.ConsistencyRules + `
[plugins."io.containerd.imagepin.v1.images"]
max_retained_bytes = 1500000
`

// TestNoPinWithoutRoom pulls, refreshes and uses what there is no room to retain: no pin is made or moved, and what it held is held. That it has
// to be known before costs no request.
func TestNoPinWithoutRoom(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: retainTwo})
	r.MustRemovePod(r.MustPod(""))
	big := images.Options{Version: "big", Random: []images.Random{{Size: 4 << 20}}}
	full := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "RetainLimitReached") {
			t.Errorf("%s: %v", what, err)
		}
	}
	one := r.Version("kept/app:v1", "one")
	ref := r.Reg.Ref("kept/app:v1")
	r.Reg.Reset()
	r.MustPull(ref, "")
	r.WantRequests("a first pull that has to fit", "HEAD manifest", "GET manifest", "GET manifest", "GET blob", "GET blob", "GET blob")
	held := retained(t, r)
	unchanged := func(what string) {
		t.Helper()
		wantPins(r, ref, map[string]string{"node": one})
		if now := retained(t, r); len(now) != 1 || !slices.Equal(now, held) {
			t.Errorf("%s: %q are held, not %q", what, now, held)
		}
		if img := r.MustStatus(ref, "runc"); !img.GetPinned() || !slices.Contains(img.GetRepoDigests(), r.Reg.Ref("kept/app@"+one)) {
			t.Errorf("%s: the tag means %v", what, img)
		}
	}
	unchanged("pulled")

	r.Push("kept/app:v1", big, images.HostPlatform())
	r.Reg.Reset()
	_, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: ref})
	full("a refresh to what is too big", err)
	unchanged("a refresh to what is too big")
	if r.Reg.Count(registry.Is("GET", registry.Blob)) > 0 {
		t.Errorf("layers of what is too big were fetched:\n%s", r.Reg.Dump())
	}
	if p := r.Pins(ref)["node"]; len(p.History) > 0 {
		t.Errorf("the pin has moved: %v", p)
	}

	other := r.Reg.Ref("kept/other:v1")
	r.Version("kept/other:v1", "other")
	before := r.MustState()
	_, err = r.Pull(r.Ctx, other, "")
	full("a second pull", err)
	wantPins(r, other, map[string]string{})
	unchanged("a second pull")
	r.Collect()
	r.WantState("a second pull that was refused", before)

	// A container that is made without a pull.
	plain := r.Reg.Ref("plain/other:v1")
	r.Version("plain/other:v1", "other")
	r.MustPull(plain, "")
	if _, err := r.Ctr(r.Ctx, "images", "tag", plain, other); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForImage(t, r.Node, other)
	pod := r.MustPod("")
	_, _, err = r.RunContainer(r.Ctx, pod, node.ContainerOptions{Image: other})
	full("a container", err)
	wantPins(r, other, map[string]string{})
	unchanged("a container")

	// What a pin lets go of makes room for what it moves to.
	two := r.Version("kept/app:v1", "two")
	if _, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	wantPins(r, ref, map[string]string{"node": two})
	if now := retained(t, r); len(now) != 1 || slices.Equal(now, held) {
		t.Errorf("%q are held, and were before", now)
	}
}

// TestRoomForOneOfTwo has two images pulled at once of which one has room: the other gets no pin.
func TestRoomForOneOfTwo(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: retainTwo})
	refs := []string{r.Reg.Ref("kept/one:v1"), r.Reg.Ref("kept/two:v1")}
	r.Version("kept/one:v1", "one")
	r.Version("kept/two:v1", "two")
	other := testkit.Async(func() (string, error) { return r.Pull(r.Ctx, refs[1], "") })
	_, first := r.Pull(r.Ctx, refs[0], "")
	_, second := other()
	if (first == nil) == (second == nil) {
		t.Errorf("the pulls got %v and %v", first, second)
	}
	for i, err := range []error{first, second} {
		if pinned := len(r.Pins(refs[i])) == 1; pinned != (err == nil) {
			t.Errorf("%s is pinned: %t; its pull got %v", refs[i], pinned, err)
		}
	}
	if held := retained(t, r); len(held) != 1 {
		t.Errorf("%q are held", held)
	}
}

// TestRetainedForWhatAnotherToolUnpacks holds a pinned image also in the snapshotter that another tool has unpacked it in.
func TestRetainedForWhatAnotherToolUnpacks(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	r.Version("kept/app:v1", "kept")
	ref := r.Reg.Ref("kept/app:v1")
	r.MustPull(ref, "")
	for id := range r.Listed() {
		r.MustRemove(id, "")
	}
	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", "--snapshotter", "native", ref); err != nil {
		t.Fatal(err)
	}
	r.Eventually("its snapshot in native is held", func() bool {
		s := testkit.State(t, r.Node)
		return slices.ContainsFunc(retained(t, r), func(lease string) bool {
			return slices.ContainsFunc(s.LeaseResources[lease], func(resource string) bool {
				return strings.HasPrefix(resource, "snapshots/native ")
			})
		})
	})
	// So it outlives its records there, too.
	for id := range r.Listed() {
		r.MustRemove(id, "")
	}
	r.Reg.Down()
	r.MustPull(ref, "")
	r.MustPull(ref, "native")
}
