package policy

import (
	"strings"
	"testing"

	"github.com/imagepin/imagepin/internal/upstream"
)

func TestOwnerScope(t *testing.T) {
	for want, owner := range map[Scope]Owner{
		"workload/shop/ReplicaSet/web-7d4b9c/3d2b":    {Kind: "ReplicaSet", Name: "web-7d4b9c", UID: "3d2b"},
		"workload/shop/StatefulSet/db/3d2b/db-5f4d68": {Kind: "StatefulSet", Name: "db", UID: "3d2b", Revision: "db-5f4d68"},
	} {
		scope := OwnerScope("shop", owner)
		if scope != want {
			t.Errorf("got %s, want %s", scope, want)
		}
		if got, ok := scope.Owner(); !ok || got != owner {
			t.Errorf("%s: got owner %+v, want %+v", scope, got, owner)
		}
		if parsed, err := ParseScope(string(scope)); err != nil || parsed != scope || scope.Namespace() != "shop" {
			t.Errorf("%s: got %s, %v in namespace %s", scope, parsed, err, parsed.Namespace())
		}
	}
	for _, scope := range []Scope{
		NodeScope, WorkloadScope("shop", "example.com/hash", "1"), "workload/shop/a/b", "workload/shop/a//c", "workload/shop/a/b/c/d/e", "a/b/c/d",
	} {
		if o, ok := scope.Owner(); ok {
			t.Errorf("%s: got owner %+v, want none", scope, o)
		}
	}
}

// TestScopesOfOwner prefers the owner to the revision label.
func TestScopesOfOwner(t *testing.T) {
	p := mustNew(t, Rule{Match: "work.io/**", Consistency: Workload}, Rule{Match: "node.io/**", Consistency: Node})
	pod := Pod{Namespace: "shop", Labels: map[string]string{"pod-template-hash": "a"}, Owner: &Owner{Kind: "ReplicaSet", Name: "web-a", UID: "1"}}
	if d, _ := p.Decide("work.io/app:1", pod); d.Scope != "workload/shop/ReplicaSet/web-a/1" {
		t.Errorf("got scope %s, want that of the owner", d.Scope)
	}
	if d, _ := p.Decide("node.io/app:1", pod); d.Scope != NodeScope {
		t.Errorf("got scope %s, want the node's", d.Scope)
	}
	got := p.Scopes("work.io/app:1", pod)
	if len(got) != 3 || got[1] != "workload/shop/pod-template-hash=a" || got[2] != NodeScope {
		t.Errorf("got scopes %v, want those of the owner, of the label, and of the node", got)
	}
}

func TestMayOwn(t *testing.T) {
	long := strings.Repeat("a", 60)
	for name, test := range map[string]struct {
		owner Owner
		pod   Pod
		want  bool
	}{
		"its pod":              {Owner{Name: "web-1"}, Pod{Name: "web-1-x2x9z"}, true},
		"another's pod":        {Owner{Name: "web-1"}, Pod{Name: "web-2-x2x9z"}, false},
		"longer name":          {Owner{Name: "web-1"}, Pod{Name: "web-11-x2x9z"}, false},
		"the name itself":      {Owner{Name: "web"}, Pod{Name: "web"}, false},
		"revision":             {Owner{Name: "db", Revision: "1"}, Pod{Name: "db-0", Labels: map[string]string{upstream.RevisionLabel: "1"}}, true},
		"another revision":     {Owner{Name: "db", Revision: "1"}, Pod{Name: "db-0", Labels: map[string]string{upstream.RevisionLabel: "2"}}, false},
		"hash of a ReplicaSet": {Owner{Kind: "ReplicaSet", Name: "web"}, Pod{Name: "web-7d4b9c-x2x9z"}, false},
		"pod of a ReplicaSet":  {Owner{Kind: "ReplicaSet", Name: "web-7d4b9c"}, Pod{Name: "web-7d4b9c-x2x9z"}, true},
		"ordinal":              {Owner{Kind: "StatefulSet", Name: "db"}, Pod{Name: "db-12"}, true},
		"longer StatefulSet":   {Owner{Kind: "StatefulSet", Name: "db"}, Pod{Name: "db-old-0"}, false},
		"indexed Job":          {Owner{Kind: "Job", Name: "backup"}, Pod{Name: "backup-3-x2x9z"}, true},
		"longer Job":           {Owner{Kind: "Job", Name: "backup"}, Pod{Name: "backup-full-x2x9z"}, false},
		"custom kind":          {Owner{Kind: "Rollout", Name: "web"}, Pod{Name: "web-blue-green-1"}, true},
		"cut name":             {Owner{Name: long}, Pod{Name: long[:58] + "x2x9z"}, true},
		"other cut name":       {Owner{Name: long}, Pod{Name: "b" + long[:57] + "x2x9z"}, false},
	} {
		if got := test.owner.MayOwn(test.pod); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
