package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ImagePin pins the tag of an image to a digest for one revision of a workload. The first node that starts a pod of the
// revision creates it, with the digest that the registry reports for the tag. All nodes then run this digest, also when
// the tag moves. Kubernetes deletes the ImagePin with its owner.
//
// The name of an ImagePin is the name of its owner, a dot, and a hash of the owner's UID, the revision and the image. So
// there is one ImagePin for each revision and image.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,categories=imagepin
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.owner.kind`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.spec.owner.name`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Digest",type=string,JSONPath=`.spec.digest`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.by.node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ImagePin struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the pinned image, its digest and its owner.
	Spec ImagePinSpec `json:"spec"`
}

// ImagePinSpec is which digest an image has for a revision of a workload. People with permission to update ImagePins can
// change the digest. Pods that start afterwards run the new one. Everything else is immutable.
//
// +kubebuilder:validation:XValidation:rule="self.image == oldSelf.image",message="image is immutable: create another ImagePin"
// +kubebuilder:validation:XValidation:rule="self.owner == oldSelf.owner",message="owner is immutable: create another ImagePin"
// +kubebuilder:validation:XValidation:rule="has(self.by) == has(oldSelf.by) && (!has(self.by) || self.by == oldSelf.by)",message="by is immutable"
type ImagePinSpec struct {
	// image is the normalized reference of the image with its tag, and without a digest, for example
	// docker.io/library/nginx:1.29.
	//
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^\s/@]+(/[^\s/@:]+)+:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`
	Image string `json:"image"`

	// digest is the digest that the registry reports for the tag. It is that of an index if the image has more than one
	// platform.
	//
	// +kubebuilder:validation:MaxLength=135
	// +kubebuilder:validation:Pattern=`^(sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128})$`
	Digest string `json:"digest"`

	// owner is the revision of the workload for which the image is pinned.
	Owner Owner `json:"owner"`

	// by is the node and the pod that created the ImagePin. It is absent if another client than a node created it.
	//
	// +optional
	By *Claimer `json:"by,omitempty"`
}

// Owner identifies a revision of a workload: the object that controls its pods, and the revision if the object has more
// than one at a time.
type Owner struct {
	// apiVersion is the API version of the object that controls the pods, for example apps/v1.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`

	// kind is the kind of the object that controls the pods, for example ReplicaSet.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`

	// name is the name of the object that controls the pods.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// uid is the UID of the object that controls the pods. An object that is deleted and created again has another UID,
	// and thus other ImagePins.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid"`

	// revision is the value of the pod label controller-revision-hash, which StatefulSets and DaemonSets set. It is absent
	// if the object has one revision only, as a ReplicaSet and a Job have.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Revision string `json:"revision,omitempty"`
}

// Claimer is the node that created an ImagePin, and the pod for which it did.
type Claimer struct {
	// node is the name of the node.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`

	// pod is the name of the pod.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`

	// podUID is the UID of the pod.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	PodUID types.UID `json:"podUID"`
}

// ImagePinList is a list of ImagePins.
//
// +kubebuilder:object:root=true
type ImagePinList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ImagePin `json:"items"`
}
