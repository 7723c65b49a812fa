package pins

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPullRetainedOffline removes retained images and pulls them again while the registry is down. Only credentials
// that the registry accepted before can pull them, also after a crash.
func TestPullRetainedOffline(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, DiscardUnpackedLayers: true})
	r.MustRemovePod(r.MustPod(""))
	r.Reg.SetAuth(&registry.Auth{Public: []string{"public/kept/*", pauseRepository(r)}, Users: map[string]registry.User{
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
	// An image that is retained later keeps its proofs.
	if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: hand, Digest: byHand, Retain: proto.Bool(true), Credential: &api.Credential{Username: "alice", Password: testkit.AlicePassword}}); err != nil {
		t.Fatal(err)
	}
	removeAll := func() {
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
			removeAll()
			if auth != nil { // a public image can be pulled with any credential
				for _, other := range []*cri.AuthConfig{bob, guessed, nil} {
					_, err := r.PullWith(r.Ctx, ref, node.PullOptions{Auth: other})
					testkit.ManifestUnavailable.Check(t, err, ref, testkit.TargetOf(""))
				}
			}
			if got := pull(ref, auth); got != ids[ref] {
				t.Errorf("pull of %s: got %q, want %s", ref, got, ids[ref])
			}
			if img := r.MustStatus(ref, "runc"); img.GetId() != ids[ref] || !img.GetPinned() {
				t.Errorf("ImageStatus of %s: got %v", ref, img)
			}
		}
		removeAll()
		r.KillAndRestart(nil)
	}
	pull(public, bob)
	pull(private, alice)
	r.WantRun("", private, testkit.Line(images.Options{Version: "private"}, images.HostPlatform()))

	// Without the pin, the content and its proofs are gone.
	removeAll()
	if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: private}); err != nil {
		t.Fatal(err)
	}
	_, err := r.PullWith(r.Ctx, private, node.PullOptions{Auth: alice})
	testkit.ManifestUnavailable.Check(t, err, private, testkit.TargetOf(""))
}

// pauseRepository returns the repository of the sandbox image.
func pauseRepository(r *testkit.Rig) string {
	repo, _, _ := strings.Cut(strings.TrimPrefix(r.Options().SandboxImage, r.Reg.Host()+"/"), ":")
	return repo
}

// retainOne limits the retained content to one small image.
const retainOne = testkit.ConsistencyRules + `
[plugins."io.containerd.imagepin.v1.images"]
max_retained_bytes = 1500000
`

// TestNoPinWithoutRoom pulls, refreshes and runs images above the limit of retained content. No pin is made or moved,
// and the retained content stays. The check of the limit sends no requests.
func TestNoPinWithoutRoom(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: retainOne})
	r.MustRemovePod(r.MustPod(""))
	big := images.Options{Version: "big", Random: []images.Random{{Size: 4 << 20}}}
	full := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "RetainLimitReached") {
			t.Errorf("%s: got error %v, want RetainLimitReached", what, err)
		}
	}
	one := r.Version("kept/app:v1", "one")
	ref := r.Reg.Ref("kept/app:v1")
	r.Reg.Reset()
	r.MustPull(ref, "")
	r.WantRequests("a first pull of a retained image", "HEAD manifest", "GET manifest", "GET manifest", "GET blob", "GET blob", "GET blob")
	held := retained(t, r)
	unchanged := func(what string) {
		t.Helper()
		wantPins(r, ref, map[string]string{"node": one})
		if now := retained(t, r); len(now) != 1 || !slices.Equal(now, held) {
			t.Errorf("%s: got leases %q, want %q", what, now, held)
		}
		if img := r.MustStatus(ref, "runc"); !img.GetPinned() || !slices.Contains(img.GetRepoDigests(), r.Reg.Ref("kept/app@"+one)) {
			t.Errorf("%s: ImageStatus: got %v", what, img)
		}
	}
	unchanged("pulled")
	r.WantVersion(node.KubeletPod{Image: ref}, "one") // a pin that nothing uses gives way

	r.Push("kept/app:v1", big, images.HostPlatform())
	r.Reg.Reset()
	_, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: ref})
	full("a refresh to a larger image", err)
	unchanged("a refresh to a larger image")
	if r.Reg.Count(registry.Is("GET", registry.Blob)) > 0 {
		t.Errorf("the refresh fetched blobs:\n%s", r.Reg.Dump())
	}
	if p := r.Pins(ref)["node"]; len(p.History) > 0 {
		t.Errorf("the pin moved: %v", p)
	}

	other := r.Reg.Ref("kept/other:v1")
	r.Version("kept/other:v1", "other")
	before := r.MustState()
	_, err = r.Pull(r.Ctx, other, "")
	full("a second pull", err)
	wantPins(r, other, map[string]string{})
	unchanged("a second pull")
	r.Collect()
	r.WantState("after a second pull that failed", before)

	// A container without a pull.
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

	// The content that a pin releases counts as free space.
	two := r.Version("kept/app:v1", "two")
	if _, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	wantPins(r, ref, map[string]string{"node": two})
	if now := retained(t, r); len(now) != 1 || slices.Equal(now, held) {
		t.Errorf("leases after the refresh: got %q, want 1 other lease", now)
	}
}

// TestRoomForOneOfTwo pulls two images concurrently that exceed the limit together. One of them is pinned and retained. A pull that
// begins when the other has ended takes its place, because nothing uses its pin.
func TestRoomForOneOfTwo(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: retainOne})
	refs := []string{r.Reg.Ref("kept/one:v1"), r.Reg.Ref("kept/two:v1")}
	r.Version("kept/one:v1", "one")
	r.Version("kept/two:v1", "two")
	other := testkit.Async(func() (string, error) { return r.Pull(r.Ctx, refs[1], "") })
	_, first := r.Pull(r.Ctx, refs[0], "")
	_, second := other()
	if first != nil && second != nil {
		t.Errorf("pulls: got errors %v and %v, want at most one", first, second)
	}
	pins := 0
	for i, err := range []error{first, second} {
		pins += len(r.Pins(refs[i]))
		if err != nil && len(r.Pins(refs[i])) > 0 {
			t.Errorf("%s is pinned; its pull returned error %v", refs[i], err)
		}
	}
	if pins != 1 {
		t.Errorf("got %d pins, want 1", pins)
	}
	if held := retained(t, r); len(held) != 1 {
		t.Errorf("got leases %q, want 1", held)
	}
}

// TestRetainUnpackedByOtherTool checks that a pin also retains the snapshots that another tool has unpacked.
func TestRetainUnpackedByOtherTool(t *testing.T) {
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
	r.Eventually("the snapshot in native is retained", func() bool {
		s := testkit.State(t, r.Node)
		return slices.ContainsFunc(retained(t, r), func(lease string) bool {
			return slices.ContainsFunc(s.LeaseResources[lease], func(resource string) bool {
				return strings.HasPrefix(resource, "snapshots/native ")
			})
		})
	})
	// It outlives its image records.
	for id := range r.Listed() {
		r.MustRemove(id, "")
	}
	r.Reg.Down()
	r.MustPull(ref, "")
	r.MustPull(ref, "native")
}
