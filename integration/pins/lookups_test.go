package pins

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// everySecond looks up pins in the background, as often as the configuration allows.
const everySecond = `
[plugins."io.containerd.imagepin.v1.images"]
lookup_interval = "1s"
` + testkit.ConsistencyRules

const goneMessage = "pins whose digest their registry no longer has: "

// outcome returns the outcome of the last lookup of the node's pin of a reference.
func outcome(r *testkit.Rig, ref string) string {
	r.T.Helper()
	return r.Pins(ref)["node"].GetLookup().GetOutcome()
}

// goneProblem returns the problem of a status about digests that are gone.
func goneProblem(r *testkit.Rig) string {
	r.T.Helper()
	st, err := r.Control().Status(r.Ctx, &api.StatusRequest{})
	if err != nil {
		r.T.Fatal(err)
	}
	for _, p := range st.GetProblems() {
		if strings.HasPrefix(p.GetMessage(), goneMessage) {
			return p.GetMessage()
		}
	}
	return ""
}

// awaitRounds waits until two rounds of lookups have ended: one of them has begun after the call.
func awaitRounds(r *testkit.Rig) {
	r.T.Helper()
	ended := func() string {
		st, err := r.Control().Status(r.Ctx, &api.StatusRequest{})
		if err != nil {
			r.T.Fatal(err)
		}
		return st.GetPins().GetLookedUpAt().String()
	}
	for range 2 {
		last := ended()
		r.Eventually("the end of a round of lookups", func() bool { return ended() != last })
	}
}

// lookupRequests describes the requests to the registry: the method, and what was requested.
func lookupRequests(r *testkit.Rig) (all []string) {
	for _, q := range r.Reg.Requests() {
		of := " tag"
		switch {
		case q.Kind == registry.Blob, q.Kind == registry.Token:
			of = " " + string(q.Kind)
		case q.ByDigest():
			of = " digest"
		}
		if q.Authorized {
			of += " authorized"
		}
		all = append(all, q.Method+of)
	}
	return all
}

// wantRounds fails the test unless the requests to the registry are those of complete rounds, after what was left of the first one.
// The last one may be incomplete.
func wantRounds(r *testkit.Rig, round ...string) {
	r.T.Helper()
	all := lookupRequests(r)
	first := max(slices.Index(all, round[0]), 0)
	for i, q := range all[first:] {
		if q != round[i%len(round)] {
			r.T.Fatalf("got requests %q, want rounds of %q:\n%s", all, round, r.Reg.Dump())
		}
	}
	if len(all)-first < len(round) {
		r.T.Errorf("got requests %q, want rounds of %q", all, round)
	}
}

// TestLookupsInTheBackground finds a tag that has moved, then a digest that was deleted, then the digest again, without a pull. The
// pin does not change, and nothing is fetched.
func TestLookupsInTheBackground(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: everySecond})
	ref, old := r.Reg.Ref("node/app:v1"), r.Version("node/app:v1", "old")
	r.WantVersion(node.KubeletPod{Image: ref}, "old")
	events := subscribe(r)
	awaitRounds(r)
	r.Reg.Reset()
	awaitRounds(r)
	wantRounds(r, "HEAD tag")
	if p := r.Pins(ref)["node"]; p.GetLookup().GetOutcome() != "present" || p.GetDrift() != nil {
		t.Errorf("got %v", p)
	}

	now := r.Version("node/app:v1", "new")
	if e := events.want("/imagepin/pin/drifted", ref, "node", old, ""); e.GetPin().GetDrift().GetDigest() != now {
		t.Errorf("got %v, want drift to %s", e, now)
	}
	awaitRounds(r)
	r.Reg.Reset()
	awaitRounds(r)
	wantRounds(r, "HEAD tag", "HEAD digest")
	if p := goneProblem(r); p != "" {
		t.Errorf("the status has %q", p)
	}

	deleteIndex(r, "node/app", old)
	events.want("/imagepin/pin/gone", ref, "node", old, "")
	awaitRounds(r)
	r.Reg.Reset()
	awaitRounds(r)
	wantRounds(r, "HEAD tag", "HEAD digest", "HEAD blob")
	r.WantOperator(1, []string{"status"}, goneMessage+"1")
	r.WantOperator(0, []string{"pin", "ls"}, "ago, gone")
	if p := r.Pins(ref)["node"]; p.GetRoot().GetDigest() != old || p.GetDrift().GetDigest() != now || p.GetMadeBy() != "use" {
		t.Errorf("got %v, want the pin at %s with drift to %s", p, old, now)
	}

	if again := r.Version("node/app:v1", "old"); again != old {
		t.Fatalf("pushed %s, want %s", again, old)
	}
	r.Eventually("the digest to be there again", func() bool { return outcome(r, ref) == "present" })
	if p := goneProblem(r); p != "" {
		t.Errorf("the status has %q", p)
	}
}

// TestLookupsOfNothing checks that a node without pins in use sends no request.
func TestLookupsOfNothing(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: everySecond})
	r.Version("other/app:v1", "other")
	r.WantVersion(node.KubeletPod{Image: r.Reg.Ref("other/app:v1")}, "other")
	r.Version("node/unused:v1", "unused")
	r.MustPull(r.Reg.Ref("node/unused:v1"), "")
	if len(r.Pins(r.Reg.Ref("node/unused:v1"))) != 1 {
		t.Fatal("the pull has made no pin")
	}
	r.Reg.Reset()
	awaitRounds(r)
	r.WantNoRequests("lookups without a pin in use")
}

// TestLookupsOfLock checks that all pins of a lock are looked up, also those that no container uses.
func TestLookupsOfLock(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: everySecond})
	ref, old := r.Reg.Ref("shop/app:v1"), r.Version("shop/app:v1", "locked")
	r.MustApply(r.WriteLock("lock.yaml", map[string]string{ref: old}))
	now := r.Version("shop/app:v1", "new")
	deleteIndex(r, "shop/app", old)
	r.Eventually("the digest of the lock to be gone", func() bool {
		p := r.Pins(ref)["lock"]
		return p.GetLookup().GetOutcome() == "gone" && p.GetDrift().GetDigest() == now
	})
	if p := goneProblem(r); p != goneMessage+"1" {
		t.Errorf("the status has %q", p)
	}
}

// TestLookupsWithoutAccess checks that nothing is said about images that only a credential of a pod can read, however their registry
// refuses the node's, and whether they are there or not.
func TestLookupsWithoutAccess(t *testing.T) {
	for name, x := range map[string]struct {
		auth  *registry.Auth
		fault func(registry.Request) *registry.Fault
		want  []string
	}{
		"basic":  {testkit.OnlyAlice(false), nil, []string{"HEAD tag"}},
		"bearer": {testkit.OnlyAlice(true), nil, []string{"HEAD tag", "GET token", "HEAD tag authorized"}},
		"hidden": {testkit.OnlyAlice(false), registry.FaultIf(registry.Fault{Status: http.StatusNotFound}, func(q registry.Request) bool { return q.User == "" }), []string{"HEAD tag", "HEAD digest", "HEAD blob"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{Extra: everySecond})
			ref, old := r.Reg.Ref("node/private:v1"), r.Version("node/private:v1", "private")
			x.auth.Public = []string{"pause"}
			r.Reg.SetAuth(x.auth)
			r.WantVersion(node.KubeletPod{Image: ref, Auth: testkit.AsAlice()}, "private")
			r.Reg.SetFault(x.fault)
			awaitRounds(r)
			r.Reg.Reset()
			awaitRounds(r)
			wantRounds(r, x.want...)
			if err := r.Reg.Delete("node/private@" + old); err != nil {
				t.Fatal(err)
			}
			awaitRounds(r)
			if got := outcome(r, ref); got != "no_access" {
				t.Errorf("got %s, want no_access", got)
			}
			if p := goneProblem(r); p != "" {
				t.Errorf("the status has %q", p)
			}
			r.WantOperator(0, []string{"pin", "ls", "--check"}, ", no access")
		})
	}
}

// TestLookupsBackOff checks that a registry that is busy is not asked again while it wants that: not in the next rounds, and not
// for an operator.
func TestLookupsBackOff(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: everySecond})
	var refs []string
	for _, tag := range []string{"node/a:v1", "node/b:v1"} {
		r.Version(tag, tag)
		refs = append(refs, r.Reg.Ref(tag))
		r.WantVersion(node.KubeletPod{Image: r.Reg.Ref(tag)}, tag)
	}
	busy := make(chan struct{})
	r.Reg.SetFault(func(registry.Request) *registry.Fault {
		return &registry.Fault{Hang: busy, Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"3600"}}}
	})
	r.Reg.Reset()
	testkit.AwaitRequest(t, r.Reg, registry.Is("HEAD", registry.Manifest))
	close(busy)
	r.Eventually("the answer to be noted", func() bool { return outcome(r, refs[0]) == "no_answer" || outcome(r, refs[1]) == "no_answer" })
	awaitRounds(r)
	r.WantOperator(1, []string{"pin", "ls", "--check"}, "ago, no answer", "it is not asked before ")
	if p := goneProblem(r); p != "" {
		t.Errorf("the status has %q", p)
	}
	r.WantRequests("a registry that is busy for an hour", "HEAD manifest")
}

// removePin removes the node's pin of a reference.
func removePin(r *testkit.Rig, ref string) {
	r.T.Helper()
	if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref, Scope: "node"}); err != nil {
		r.T.Fatal(err)
	}
}

// TestCheckPins runs imagepin pin ls --check with pins in each state. It counts the requests.
func TestCheckPins(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	check := func(code int, words ...string) {
		t.Helper()
		r.WantOperator(code, []string{"pin", "ls", "--check", "--ref", "**/node/**"}, words...)
	}
	tag := func(name string) (tag, ref string) { return "node/" + name + ":v1", r.Reg.Ref("node/" + name + ":v1") }
	pinned := func(name string) (ref, digest string) {
		t.Helper()
		tag, ref := tag(name)
		digest = r.Version(tag, name)
		r.MustPull(ref, "")
		r.Reg.Reset()
		return ref, digest
	}
	same, _ := pinned("same")
	if p := r.Pins(same)["node"].GetLookup(); p.GetOutcome() != "present" || p.GetAt() == nil {
		t.Errorf("got %v after the pull that has made the pin", p)
	}
	check(0, "ago\n")
	r.WantRequests("the same", "HEAD manifest")
	moved, _ := pinned("moved")
	r.Version("node/moved:v1", "another")
	check(10)
	r.WantRequests("one is the same, one has moved", "HEAD manifest", "HEAD manifest", "HEAD manifest")
	removePin(r, moved)
	untagged, _ := pinned("untagged")
	if err := r.Reg.Delete("node/untagged:v1"); err != nil {
		t.Fatal(err)
	}
	check(0)
	r.WantRequests("one is the same, one has no tag", "HEAD manifest", "HEAD manifest", "HEAD manifest")
	removePin(r, untagged)
	gone, old := pinned("gone")
	if r.Restart(r.Ctx, nil) != nil { // the proof is that of the pull
		t.Fatal("containerd does not start")
	}
	if p := r.Pins(gone)["node"]; p.GetLookup() != nil {
		t.Errorf("got %v after a restart", p)
	}
	r.WantOperator(0, []string{"pin", "ls"}, "no      -      -\n")
	deleteIndex(r, "node/gone", old)
	r.Reg.Reset()
	check(10, "ago, gone\n")
	r.WantRequests("one is the same, one is gone", "HEAD manifest", "HEAD manifest", "HEAD manifest", "HEAD blob")
	r.WantOperator(0, []string{"inspect", gone}, "gone since ")
	r.WantOperator(1, []string{"status"}, goneMessage+"1")
	removePin(r, gone)
	if p := goneProblem(r); p != "" {
		t.Errorf("the status has %q without the pin", p)
	}
	r.Reg.Down()
	check(1, "ago, no answer\n", "pins whose registry did not answer: 1", "connection refused")
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.Reg.Reset()
	check(0)
	r.WantRequests("the registry is back", "HEAD manifest")
}
