package pin

import (
	"fmt"
	"testing"
	"time"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestProofs adds proofs to a retaining pin. Each proof is written once, and persists until the pin has another digest
// or stops retaining.
func TestProofs(t *testing.T) {
	e := newEnv(t, 0)
	repo, err := reference.ParseNamed("registry.example/team/app")
	if err != nil {
		t.Fatal(err)
	}
	other, err := reference.ParseNamed("registry.example/team/other")
	if err != nil {
		t.Fatal(err)
	}
	retaining, plain := ID{Scope: "node", Ref: ref}, ID{Scope: "workload/shop/pod-template-hash=1", Ref: ref}
	one, two := root("one"), root("two")
	for id, retain := range map[ID]bool{retaining: true, plain: false} {
		if _, err := e.MakeForNamespace(e.ctx, "", id, one, ByUse, retain); err != nil {
			t.Fatal(err)
		}
	}
	prove := func(named reference.Named, text string, macs ...string) {
		t.Helper()
		for _, mac := range macs {
			if err := e.Prove(e.ctx, named, root(text).Digest, imagepin.NewProof(mac, "shop")); err != nil {
				t.Fatal(err)
			}
		}
	}
	has := func(when string, want ...bool) {
		t.Helper()
		wantEqual(t, when, fmt.Sprint(e.HasProof("alice"), e.HasProof("bob"), e.HasProof("alice", "bob")), fmt.Sprint(want[0], want[1], want[0] || want[1]))
	}
	prove(other, "one", "alice")
	prove(repo, "two", "alice")
	has("after proofs of other content", false, false)
	before := e.wrote
	prove(repo, "one", "alice")
	prove(repo, "one", "alice")
	has("after a proof", true, false)
	wantEqual(t, "writes", e.wrote-before, 1)
	old := Proof{MAC: "alice", Namespace: "shop", UsedAt: time.Now().AddDate(0, 0, -2)}
	if err := e.Prove(e.ctx, repo, one.Digest, old); err != nil { // of another record
		t.Fatal(err)
	}
	wantEqual(t, "writes of an older use", e.wrote-before, 1)
	if err := e.Load(e.ctx); err != nil {
		t.Fatal(err)
	}
	has("after a restart", true, false)
	if err := e.RecordDrift(e.ctx, retaining, two.Digest); err != nil {
		t.Fatal(err)
	}
	has("with a drift", true, false)

	if _, err := e.Move(e.ctx, retaining, two, ByRefresh, true); err != nil {
		t.Fatal(err)
	}
	has("after a move", false, false)
	prove(repo, "two", "bob")
	has("after another proof", false, true)
	for range 2 {
		if _, err := e.Move(e.ctx, retaining, two, ByOperator, false); err != nil {
			t.Fatal(err)
		}
		has("of a pin that does not retain", false, false)
		if err := e.Load(e.ctx); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := e.Move(e.ctx, retaining, two, ByOperator, true); err != nil {
		t.Fatal(err)
	}
	prove(repo, "two", "alice")
	for i := range imagepin.MaxProofs {
		prove(repo, "two", fmt.Sprint("rotated ", i))
	}
	p, _ := e.Get(retaining)
	wantEqual(t, "proofs", len(p.Proofs), imagepin.MaxProofs)
	has("after too many proofs", false, false)
	if _, err := e.Store.Remove(e.ctx, retaining); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "last proof of a removed pin", e.HasProof(fmt.Sprint("rotated ", imagepin.MaxProofs-1)), false)
	wantEqual(t, "proofs in memory", len(e.proofs), 0)
}
