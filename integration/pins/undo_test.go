package pins

import (
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestUndo moves a pin back and forth, keeps its retention, and refuses what cannot be undone.
func TestUndo(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	ref := r.Reg.Ref("kept/app:v1")
	old := r.Version("kept/app:v1", "old")
	r.MustPull(ref, "")
	if out, code := r.Operator("pin", "undo", ref); code != 1 || !strings.Contains(out, "NoEarlierDigest") {
		t.Errorf("undo of a new pin: exit code %d\n%s", code, out)
	}
	current := r.Version("kept/app:v1", "current")
	if out, code := r.Operator("refresh", "--drifted"); code != 0 || !strings.Contains(out, "No pin of this node has drifted.") {
		t.Errorf("refresh --drifted before the drift is known: exit code %d\n%s", code, out)
	}
	r.MustPull(ref, "") // detects the drift
	if out, code := r.Operator("refresh", "--drifted"); code != 10 || !strings.Contains(out, "changed") {
		t.Errorf("refresh --drifted: exit code %d\n%s", code, out)
	}
	for i, wanted := range []string{old, current, old} {
		if out, code := r.Operator("pin", "undo", ref); code != 0 || !strings.Contains(out, "Pinned "+ref+" to "+wanted) {
			t.Errorf("undo %d: exit code %d\n%s", i, code, out)
		}
		if p := r.Pins(ref)["node"]; p.GetRoot().GetDigest() != wanted || !p.GetRetain() {
			t.Errorf("undo %d: got pin %v", i, p)
		}
	}
	// The tag has the image of the digest before the last undo until the next pull.
	if out, _ := r.Operator("images", "--ref", ref); !strings.Contains(out, " node at "+old[len("sha256:"):][:12]+"\n") {
		t.Errorf("images after the undo:\n%s", out)
	}
	r.MustPull(ref, "")
	if out, _ := r.Operator("images", "--ref", ref); !strings.Contains(out, " "+old[len("sha256:"):][:12]+" ") || !strings.Contains(out, " node\n") {
		t.Errorf("images after the pull:\n%s", out)
	}
}

// TestOtherScopes checks that commands for a pin name the other scopes of its tag.
func TestOtherScopes(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	ref := r.Reg.Ref("shop/app:v1")
	digest := r.Version("shop/app:v1", "app")
	r.MustPull(ref, "")
	const scope, other = "workload/shop/app=1", "workload/shop/app=2"
	for _, command := range [][]string{{"pin", "undo", ref}, {"pin", "rm", ref}, {"diff", ref, "--scope", "node"}} {
		r.WantOperator(0, []string{"pin", "set", ref, digest, "--scope", scope})
		r.WantOperator(1, command, "UnknownPin", "scope node", "--scope: "+scope)
	}
	r.WantOperator(0, []string{"pin", "set", ref, digest, "--scope", other}, "1 pin in other scopes, unchanged: "+scope)
	r.WantOperator(1, []string{"pin", "undo", ref}, scope+", "+other)
	r.WantOperator(0, []string{"pin", "rm", ref, "--scope", other}, "1 pin in other scopes, unchanged: "+scope)
	r.WantOperator(1, []string{"pin", "rm", ref, "--scope", ""}, "a scope is not empty")
	r.WantOperator(0, []string{"pin", "ls", "--scope", "all"}, scope)
}

// TestRefreshDrifted refreshes all drifted pins, also if one of them fails.
func TestRefreshDrifted(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	names := []string{"node/a:v1", "node/b:v1", "node/c:v1"}
	moved := map[string]string{}
	for _, name := range names {
		r.Version(name, "old")
		r.MustPull(r.Reg.Ref(name), "")
		moved[name] = r.Version(name, "new")
		r.MustPull(r.Reg.Ref(name), "")
	}
	if err := r.Reg.Delete("node/b:v1"); err != nil {
		t.Fatal(err)
	}
	out, code := r.Operator("refresh", "--drifted")
	if code != 1 || !strings.Contains(out, r.Reg.Ref("node/b:v1")) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	for _, name := range names {
		p := r.Pins(r.Reg.Ref(name))["node"]
		if is, should := p.GetRoot().GetDigest() == moved[name], name != "node/b:v1"; is != should {
			t.Errorf("%s is refreshed: %t", name, is)
		}
	}
}
