package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is the name of the resource in URLs and in RBAC rules.
const Resource = "imagepins"

// GroupVersion is the API group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "imagepin.io", Version: "v1alpha1"}

// AddToScheme adds the types of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &ImagePin{}, &ImagePinList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
