package kube

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// TestCanExist checks the forms and the lengths of the fields of an owner.
func TestCanExist(t *testing.T) {
	long := func(n int) string { return strings.Repeat("a", n) }
	for name, c := range map[string]struct {
		change func(*v1alpha1.Owner)
		want   bool
	}{
		"plain":                   {func(*v1alpha1.Owner) {}, true},
		"longest kind":            {func(o *v1alpha1.Owner) { o.Kind = long(63) }, true},
		"kind too long":           {func(o *v1alpha1.Owner) { o.Kind = long(64) }, false},
		"no kind":                 {func(o *v1alpha1.Owner) { o.Kind = "" }, false},
		"kind of one letter":      {func(o *v1alpha1.Owner) { o.Kind = "K" }, true},
		"kind begins with digit":  {func(o *v1alpha1.Owner) { o.Kind = "1K" }, false},
		"kind with a line break":  {func(o *v1alpha1.Owner) { o.Kind = "Job\n" }, false},
		"longest UID":             {func(o *v1alpha1.Owner) { o.UID = types.UID(long(128)) }, true},
		"UID too long":            {func(o *v1alpha1.Owner) { o.UID = types.UID(long(129)) }, false},
		"no UID":                  {func(o *v1alpha1.Owner) { o.UID = "" }, false},
		"UID with a slash":        {func(o *v1alpha1.Owner) { o.UID = "a/b" }, false},
		"longest APIVersion":      {func(o *v1alpha1.Owner) { o.APIVersion = long(maxAPIVersion) }, true},
		"APIVersion too long":     {func(o *v1alpha1.Owner) { o.APIVersion = long(maxAPIVersion + 1) }, false},
		"name that is no DNS one": {func(o *v1alpha1.Owner) { o.Name = "A_" }, false},
	} {
		o := v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "owner-1"}
		c.change(&o)
		if got := canExist(o); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}
