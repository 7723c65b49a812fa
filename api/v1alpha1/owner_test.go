package v1alpha1

import "testing"

func TestSameOwner(t *testing.T) {
	web := Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7d4b9c", UID: "rs-1", Revision: "1"}
	for name, c := range map[string]struct {
		change func(*Owner)
		same   bool
	}{
		"itself":                       {func(*Owner) {}, true},
		"another version":              {func(o *Owner) { o.APIVersion = "apps/v9" }, true},
		"another group":                {func(o *Owner) { o.APIVersion = "example.com/v1" }, false},
		"the core group":               {func(o *Owner) { o.APIVersion = "v1" }, false},
		"the group in capital letters": {func(o *Owner) { o.APIVersion = "Apps/v1" }, false},
		"an empty group":               {func(o *Owner) { o.APIVersion = "/v1" }, false},
		"no version":                   {func(o *Owner) { o.APIVersion = "apps/" }, false},
		"three parts":                  {func(o *Owner) { o.APIVersion = "apps/v1/x" }, false},
		"nothing":                      {func(o *Owner) { o.APIVersion = "" }, false},
		"another kind":                 {func(o *Owner) { o.Kind = "StatefulSet" }, false},
		"another name":                 {func(o *Owner) { o.Name = "web" }, false},
		"another UID":                  {func(o *Owner) { o.UID = "rs-2" }, false},
		"another revision":             {func(o *Owner) { o.Revision = "" }, false},
	} {
		other := web
		c.change(&other)
		if web.Same(other) != c.same || other.Same(web) != c.same {
			t.Errorf("%s: got %v, want %v", name, !c.same, c.same)
		}
	}
	core := Owner{APIVersion: "v1", Kind: "ReplicationController"}
	empty := core
	empty.APIVersion = "/v1"
	if core.Same(empty) {
		t.Error("the core group is the same as an empty one")
	}
}
