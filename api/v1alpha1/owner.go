package v1alpha1

import "k8s.io/apimachinery/pkg/runtime/schema"

// Same reports whether two owners are the same revision of one object. The version of the API does not matter, because the API
// server has an object in several, but the group does: kinds of two groups can have one name.
func (o Owner) Same(other Owner) bool {
	group, ok := groupOf(o.APIVersion)
	otherGroup, otherOK := groupOf(other.APIVersion)
	if ok != otherOK || group != otherGroup {
		return false
	}
	o.APIVersion = other.APIVersion
	return o == other
}

// groupOf returns the group of an API version, or the text itself if it is none.
func groupOf(apiVersion string) (group string, ok bool) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || gv.Version == "" || gv.String() != apiVersion {
		return apiVersion, false
	}
	return gv.Group, true
}
