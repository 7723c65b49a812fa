package pin

import (
	"context"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

var (
	owned    = ID{Scope: policy.OwnerScope("shop", policy.Owner{Kind: "StatefulSet", Name: "web", UID: "1", Revision: "web-5f4d"}), Ref: ref}
	claimant = Claimant{Name: "web-0", UID: "77"}
)

// follow follows the cluster, and fails the test if that fails.
func (e *env) follow(t *testing.T, root ocispec.Descriptor, retain bool) Followed {
	t.Helper()
	followed, err := e.Follow(e.ctx, owned, root, retain, "n1")
	if err != nil {
		t.Fatal(err)
	}
	return followed
}

// TestFollow makes, moves and keeps the copy of a pin of the cluster, also over a restart.
func TestFollow(t *testing.T) {
	e := newEnv(t, 0)
	want := func(what, digest string, history int) {
		t.Helper()
		e.reload(t)
		p, ok := e.Get(owned)
		if !ok || p.Root.Digest != root(digest).Digest || p.By != ByCluster || p.Claimer != "n1" || p.Provisional != nil || len(p.History) != history {
			t.Errorf("%s: got %+v, want a copy of %s with %d earlier digests", what, p, digest, history)
		}
	}
	e.follow(t, root("one"), false)
	want("first", "one", 0)
	if err := e.RecordDrift(e.ctx, owned, root("two").Digest); err != nil {
		t.Fatal(err)
	}
	e.follow(t, root("one"), false)
	want("again", "one", 0)
	if p, _ := e.Get(owned); p.Drift == nil {
		t.Error("the drift is lost")
	}
	e.follow(t, root("two"), true)
	want("moved", "two", 1)
	if p, _ := e.Get(owned); !p.Retain {
		t.Error("the copy does not retain its content")
	}
	wantEqual(t, "events", e.notified, []string{"made " + ref, "drifted " + ref, "moved " + ref})
}

// TestProvisional keeps for which pod a pin is to be claimed, until it is claimed.
func TestProvisional(t *testing.T) {
	e := newEnv(t, 0)
	must(t)(e.MakeProvisional(e.ctx, owned, root("one"), true, Claimant{Name: "web-1", UID: "78"}))
	must(t)(e.MakeProvisional(e.ctx, owned, root("two"), true, claimant))
	e.reload(t)
	all := e.Provisional()
	if len(all) != 1 || all[0].Root.Digest != root("one").Digest || *all[0].Provisional != claimant || !all[0].Retain {
		t.Fatalf("got %+v, want the first digest, and the last pod", all)
	}
	e.follow(t, root("one"), false)
	e.reload(t)
	wantEqual(t, "provisional pins after the claim", len(e.Provisional()), 0)
	if p, _ := e.Get(owned); !p.Retain || p.By != ByCluster {
		t.Errorf("got %+v, want a copy that retains its content as the provisional pin did", p)
	}
}

// TestGaveWay returns a provisional pin that moves to another digest, once.
func TestGaveWay(t *testing.T) {
	for digest, gives := range map[string]bool{"one": false, "two": true} {
		e := newEnv(t, 0)
		must(t)(e.MakeProvisional(e.ctx, owned, root("one"), false, claimant))
		got := e.follow(t, root(digest), false).GaveWay
		if gives && (got == nil || got.Root.Digest != root("one").Digest || *got.Provisional != claimant) || !gives && got != nil {
			t.Errorf("to %s: got %+v, want the provisional pin: %v", digest, got, gives)
		}
		if p, _ := e.Get(owned); p.WasCopy() {
			t.Errorf("to %s: got a copy that moved, want a provisional pin", digest)
		}
		if again := e.follow(t, root("three"), false).GaveWay; again != nil {
			t.Errorf("again: got %+v, want nil: it was not provisional", again)
		}
		if p, _ := e.Get(owned); !p.WasCopy() {
			t.Errorf("again: got a provisional pin, want a copy that moved")
		}
	}
}

// TestGaveWayNot returns no pin if the move fails.
func TestGaveWayNot(t *testing.T) {
	e := newEnv(t, 0)
	must(t)(e.MakeProvisional(e.ctx, owned, root("one"), false, claimant))
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	if got, err := e.Follow(ctx, owned, root("two"), false, "n1"); err == nil || got.GaveWay != nil {
		t.Errorf("got %+v, %v, want an error", got.GaveWay, err)
	}
	wantEqual(t, "provisional pins", len(e.Provisional()), 1)
}

// TestProvisionalOfOperator does not claim what an operator has set for this node.
func TestProvisionalOfOperator(t *testing.T) {
	e := newEnv(t, 0)
	must(t)(e.MakeProvisional(e.ctx, owned, root("one"), false, claimant))
	must(t)(e.Move(e.ctx, owned, root("two"), ByOperator, false))
	e.reload(t)
	wantEqual(t, "provisional pins", len(e.Provisional()), 0)
}

// TestUnfollow removes a copy, unless it has changed since it was read.
func TestUnfollow(t *testing.T) {
	e := newEnv(t, 0)
	read := e.follow(t, root("one"), false)
	moved := e.follow(t, root("two"), false)
	unfollow := func(what string, p Pin, want bool) {
		t.Helper()
		if removed, err := e.Unfollow(e.ctx, p); err != nil || removed != want {
			t.Errorf("%s: got removed %v, %v, want %v", what, removed, err, want)
		}
	}
	unfollow("the copy has moved", read.Pin, false)
	wantEqual(t, "pins after the copy has moved", len(e.List()), 1)
	unfollow("the copy", moved.Pin, true)
	unfollow("no copy", moved.Pin, false)
	first := must(t)(e.MakeProvisional(e.ctx, owned, root("one"), false, claimant))
	other := must(t)(e.MakeProvisional(e.ctx, owned, root("one"), false, Claimant{Name: "web-1", UID: "78"}))
	unfollow("another pod has used it", first, false)
	unfollow("provisional", other, true)
	wantEqual(t, "pins", len(e.List()), 0)
}

// TestFollowCap counts copies against the cap of their namespace.
func TestFollowCap(t *testing.T) {
	e := newEnv(t, 1)
	e.follow(t, root("one"), false)
	other := owned
	other.Ref = "registry.example/team/other:1"
	if _, err := e.Follow(e.ctx, other, root("one"), false, "n1"); err == nil {
		t.Error("got no error, want PinLimitReached")
	}
	if _, err := e.MakeProvisional(e.ctx, other, root("one"), false, claimant); err == nil {
		t.Error("provisional pin: got no error, want PinLimitReached")
	}
}
