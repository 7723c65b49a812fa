// Package v1alpha1 has the Kubernetes API of imagepin: the ImagePin, which pins a tag to a digest for one revision of a
// workload on all nodes.
//
// Nodes create ImagePins and never change them. The first one to create the ImagePin of an owner, a revision and an
// image decides the digest, and all other nodes run it. Kubernetes deletes an ImagePin with its owner.
//
// +groupName=imagepin.io
// +kubebuilder:object:generate=true
package v1alpha1
