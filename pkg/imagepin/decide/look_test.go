package decide

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// TestLookWritesNothing answers for a pod as the next pull decides, and changes neither the pins of the node nor those of the
// cluster. The pull records what Look has learned.
func TestLookWritesNothing(t *testing.T) {
	private := policy.WorkloadScope("shop", "revision", "1")
	for name, test := range map[string]struct {
		prepare func(t *testing.T, e *env)
		want    string // the digest that Look returns; "" if there is no pin
		pulled  string // the digest that the next pull runs
	}{
		"no pin": {func(*testing.T, *env) {}, "", "new"},
		"an ImagePin of which the node has no copy": {func(_ *testing.T, e *env) {
			e.member.pins["uid-1 "+e.ref.String()] = roots["old"].Digest
		}, "old", "old"},
		"an ImagePin of another digest than the copy": {func(t *testing.T, e *env) {
			e.wantPull(t, webPod("web-1-z"), "new")
			e.member.pins["uid-1 "+e.ref.String()] = roots["old"].Digest
		}, "old", "old"},
		"a copy of an ImagePin that was deleted": {func(t *testing.T, e *env) {
			e.registry.tag.Store("old")
			e.wantPull(t, webPod("web-1-z"), "old")
			clear(e.member.pins)
			e.registry.tag.Store("new")
		}, "", "new"},
		"a copy of an ImagePin that was deleted, and a pin of an operator": {func(t *testing.T, e *env) {
			e.wantPull(t, webPod("web-1-z"), "new")
			clear(e.member.pins)
			e.make(t, policy.NodeScope, "old", pin.ByOperator, false)
		}, "old", "old"},
		"a provisional pin": {func(t *testing.T, e *env) {
			e.registry.tag.Store("old")
			e.member.refuses = errAway
			e.wantPull(t, webPod("web-1-z"), "old")
			e.member.refuses = nil
			e.member.pods = map[string]*policy.Owner{webPod("web-1-z").UID: webOwner(webPod("web-1-z"))}
			e.registry.tag.Store("new")
		}, "old", "old"},
		"a provisional pin of another owner with the same labels": {func(t *testing.T, e *env) {
			held := e.make(t, private, "old", pin.ByUse, false)
			_, err := e.pins.Remove(e.ctx, held.ID)
			noError(t, err)
			_, err = e.pins.MakeProvisional(e.ctx, held.ID, roots["old"], false, pin.Claimant{Name: "web-0", UID: "gone"})
			noError(t, err)
			e.member.pods = map[string]*policy.Owner{"gone": nil}
		}, "", "new"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newMember(t, newFakeCluster(), false)
			e.registry.tag.Store("new")
			test.prepare(t, e)
			records, err := e.node.Images.List(e.node.InNamespace(t, pin.Namespace))
			noError(t, err)
			before, shared := e.pins.List(), maps.Clone(e.member.pins)
			for range 2 {
				root, ok, err := e.looked(e.ctx, e.ref.String(), webPod("web-1-a"))
				noError(t, err)
				if ok != (test.want != "") || ok && version(root.Digest()) != test.want {
					t.Errorf("got %v, %t, want %q", root, ok, test.want)
				}
			}
			after, err := e.node.Images.List(e.node.InNamespace(t, pin.Namespace))
			noError(t, err)
			wantEqual(t, "records of pins", len(after), len(records))
			same := slices.EqualFunc(before, e.pins.List(), func(a, b pin.Pin) bool {
				return a.ID == b.ID && a.Root.Digest == b.Root.Digest && a.By == b.By && (a.Provisional == nil) == (b.Provisional == nil)
			})
			wantEqual(t, "the pins of the node are unchanged", same, true)
			wantEqual(t, "the pins of the cluster are unchanged", maps.Equal(shared, e.member.pins), true)
			e.wantPull(t, webPod("web-1-a"), test.pulled)
			if root, ok, err := e.looked(e.ctx, e.ref.String(), webPod("web-1-b")); err != nil || !ok || version(root.Digest()) != test.pulled {
				t.Errorf("after the pull: got %v, %t, %v, want %s", root, ok, err, test.pulled)
			}
		})
	}
}

// looked is Look. ok reports whether there is a pin.
func (e *env) looked(ctx context.Context, name string, pod policy.Pod) (_ reference.Canonical, ok bool, _ error) {
	l, err := e.Look(ctx, name, pod)
	return l.Root, l.Root != nil, err
}

// TestLookWhileTheClusterIsAway answers with the node's own pins, or fails if the node may not pin provisionally.
func TestLookWhileTheClusterIsAway(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, true)
	e.wantPull(t, webPod("web-1-a"), "old")
	c.refuses = errAway
	if root, ok, err := e.looked(e.ctx, e.ref.String(), webPod("web-1-b")); err != nil || !ok || version(root.Digest()) != "old" {
		t.Errorf("got %v, %t, %v, want the copy", root, ok, err)
	}
	if root, ok, err := e.looked(e.ctx, e.ref.String(), webPod("web-2-b")); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, %t, %v, want ClusterUnavailable", root, ok, err)
	}
}

// TestLockWhileTheClusterIsAsked answers with the lock that was applied during the request, not with the pin of the node that waits
// for a claim.
func TestLockWhileTheClusterIsAsked(t *testing.T) {
	e := newMember(t, newFakeCluster(), false)
	e.member.refuses = errAway
	e.wantPull(t, webPod("web-1-z"), "old")
	e.member.refuses = nil
	e.member.during = func() {
		e.pins.SetLock([]pin.Pin{{ID: e.id(policy.LockScope), Root: roots["new"], By: pin.ByLock, Retain: true}}, nil)
	}
	if root, ok, err := e.looked(e.ctx, e.ref.String(), webPod("web-1-z")); err != nil || !ok || version(root.Digest()) != "new" {
		t.Errorf("got %v, %t, %v, want the digest of the lock", root, ok, err)
	}
}

// TestPinRemovedWhileTheClusterIsAsked does not claim a provisional pin that was removed during the request.
func TestPinRemovedWhileTheClusterIsAsked(t *testing.T) {
	e := newMember(t, newFakeCluster(), false)
	owned := policy.OwnerScope("shop", *webOwner(webPod("web-1-z")))
	_, err := e.pins.MakeProvisional(e.ctx, e.id(owned), roots["old"], false, pin.Claimant{Name: "web-1-z", UID: webPod("web-1-z").UID})
	noError(t, err)
	e.registry.tag.Store("new")
	e.member.during = func() {
		e.member.during = nil
		_, err := e.pins.Remove(e.ctx, e.id(owned))
		noError(t, err)
	}
	e.wantPull(t, webPod("web-1-z"), "new")
	wantEqual(t, "claimed", version(e.member.pins["uid-1 "+e.ref.String()]), "new")
}

// TestPinRemovedWhileItsOwnerIsAsked does not claim a provisional pin without an owner that was removed during the request for the owner.
func TestPinRemovedWhileItsOwnerIsAsked(t *testing.T) {
	e := newMember(t, newFakeCluster(), false)
	ownerless := e.id(policy.WorkloadScope("shop", "revision", "1"))
	_, err := e.pins.MakeProvisional(e.ctx, ownerless, roots["old"], false, pin.Claimant{Name: "web-1-z", UID: webPod("web-1-z").UID})
	noError(t, err)
	e.registry.tag.Store("new")
	e.member.claimant = func() {
		_, err := e.pins.Remove(e.ctx, ownerless)
		noError(t, err)
	}
	e.wantPull(t, webPod("web-1-z"), "new")
	wantEqual(t, "claimed", version(e.member.pins["uid-1 "+e.ref.String()]), "new")
}

// TestClusterIsRemovedDuringAPull fails the claim as one of an API server that is away, so that the caller tries again without it.
func TestClusterIsRemovedDuringAPull(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Workload})
	use := &pin.FirstUse{ID: e.id(policy.NodeScope), Pod: policy.Pod{Provisional: true}}
	_, _, err := e.Claim(e.ctx, Verdict{Ref: e.ref, Root: roots["old"], FirstUse: use}, imagepin.Entry{}, func() int64 { return 0 })
	if !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	wantEqual(t, "pinned", e.pinned(policy.NodeScope), "")
}
