package pin

import (
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

var (
	owned    = ID{Scope: policy.OwnerScope("shop", policy.Owner{Kind: "StatefulSet", Name: "web", UID: "1", Revision: "web-5f4d"}), Ref: ref}
	claimant = Claimant{Name: "web-0", UID: "77"}
)

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
	must(t)(e.Follow(e.ctx, owned, root("one"), false, "n1"))
	want("first", "one", 0)
	if err := e.RecordDrift(e.ctx, owned, root("two").Digest); err != nil {
		t.Fatal(err)
	}
	must(t)(e.Follow(e.ctx, owned, root("one"), false, "n1"))
	want("again", "one", 0)
	if p, _ := e.Get(owned); p.Drift == nil {
		t.Error("the drift is lost")
	}
	must(t)(e.Follow(e.ctx, owned, root("two"), true, "n1"))
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
	must(t)(e.Follow(e.ctx, owned, root("one"), false, "n1"))
	e.reload(t)
	wantEqual(t, "provisional pins after the claim", len(e.Provisional()), 0)
	if p, _ := e.Get(owned); !p.Retain || p.By != ByCluster {
		t.Errorf("got %+v, want a copy that retains its content as the provisional pin did", p)
	}
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
	read := must(t)(e.Follow(e.ctx, owned, root("one"), false, "n1"))
	moved := must(t)(e.Follow(e.ctx, owned, root("two"), false, "n1"))
	if err := e.Unfollow(e.ctx, read); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "pins after the copy has moved", len(e.List()), 1)
	for range 2 { // the second time, there is none
		if err := e.Unfollow(e.ctx, moved); err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, "pins", len(e.List()), 0)
}

// TestFollowCap counts copies against the cap of their namespace.
func TestFollowCap(t *testing.T) {
	e := newEnv(t, 1)
	must(t)(e.Follow(e.ctx, owned, root("one"), false, "n1"))
	other := owned
	other.Ref = "registry.example/team/other:1"
	if _, err := e.Follow(e.ctx, other, root("one"), false, "n1"); err == nil {
		t.Error("got no error, want PinLimitReached")
	}
	if _, err := e.MakeProvisional(e.ctx, other, root("one"), false, claimant); err == nil {
		t.Error("provisional pin: got no error, want PinLimitReached")
	}
}
