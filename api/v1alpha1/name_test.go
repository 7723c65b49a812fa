package v1alpha1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validation"
)

func TestName(t *testing.T) {
	const image = "registry.example.com/shop/web:v7"
	owner := Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7d4b9c", UID: "3d2b1a"}
	name := Name(owner, image)
	// Nodes of different releases must use the same names.
	if want := "web-7d4b9c.a3f9523bba"; name != want {
		t.Errorf("got %q, want %q", name, want)
	}
	if got, want := Name(Owner{Name: "db", UID: "3d2b1a", Revision: "5d4"}, image), "db.7bbc6ca4ec"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	others := map[string]string{
		"another UID":      Name(Owner{Name: owner.Name, UID: "3d2b1b"}, image),
		"another revision": Name(Owner{Name: owner.Name, UID: owner.UID, Revision: "1"}, image),
		"another image":    Name(owner, image+"1"),
	}
	for what, other := range others {
		if other == name {
			t.Errorf("%s has the same name, %s", what, name)
		}
	}
	// The separator keeps a UID and a revision apart.
	if a, b := Name(Owner{UID: "a", Revision: "b"}, image), Name(Owner{UID: "ab"}, image); a == b {
		t.Errorf("UID a of revision b and UID ab have the same name, %s", a)
	}
	for _, long := range []string{strings.Repeat("a", 253), strings.Repeat("a", 241) + "." + strings.Repeat("b", 11), strings.Repeat("a", 241) + "-bcd"} {
		name := Name(Owner{Name: long, UID: "1"}, image)
		if errs := validation.NameIsDNSSubdomain(name, false); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestControllerRevisionName(t *testing.T) {
	long := strings.Repeat("a", 240)
	for _, tc := range []struct {
		owner Owner
		want  string
	}{
		{Owner{Name: "db", Revision: "db-7d4b9c"}, "db-7d4b9c"},
		{Owner{Name: "agent", Revision: "7d4b9c"}, "agent-7d4b9c"},
		{Owner{Name: "agent", Revision: "db-7d4b9c"}, "agent-db-7d4b9c"},
		// The name of the owner is not cut.
		{Owner{Name: long, Revision: "7d4b9c"}, long + "-7d4b9c"},
		{Owner{Name: long, Revision: long[:223] + "-7d4b9c"}, long + "-" + long[:223] + "-7d4b9c"},
	} {
		if got := ControllerRevisionName(tc.owner); got != tc.want {
			t.Errorf("%+v: got %s, want %s", tc.owner, got, tc.want)
		}
	}
}
