package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// OwnerOf returns the revision of the workload that controls a pod, as a node finds it. It reports false for a pod without
// a controller and for a static pod, whose controller is its node: these have no ImagePins.
//
// A ReplicaSet and a Job have one revision only. Pods of other kinds, such as StatefulSets and DaemonSets, name their
// revision in the label controller-revision-hash.
func OwnerOf(pod metav1.Object) (v1alpha1.Owner, bool) {
	c := metav1.GetControllerOfNoCopy(pod)
	_, isMirror := pod.GetAnnotations()[corev1.MirrorPodAnnotationKey]
	if c == nil || isMirror || isKind(c, corev1.GroupName, "Node") {
		return v1alpha1.Owner{}, false
	}
	owner := v1alpha1.Owner{APIVersion: c.APIVersion, Kind: c.Kind, Name: c.Name, UID: c.UID}
	if !hasOneRevision(owner) {
		owner.Revision = pod.GetLabels()[appsv1.ControllerRevisionHashLabelKey]
	}
	return owner, true
}

// HasOneTemplate reports whether all pods of an owner come from one pod template, so that their containers name the
// same images. A controller that Kubernetes does not know may replace its pods one by one with other images.
func HasOneTemplate(owner v1alpha1.Owner) bool { return owner.Revision != "" || hasOneRevision(owner) }

func hasOneRevision(o v1alpha1.Owner) bool {
	ref := &metav1.OwnerReference{APIVersion: o.APIVersion, Kind: o.Kind}
	return isKind(ref, appsv1.GroupName, "ReplicaSet") || isKind(ref, batchv1.GroupName, "Job")
}

// isKind reports whether a reference is to a kind of a group, in any version.
func isKind(ref *metav1.OwnerReference, group, kind string) bool {
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind() == schema.GroupKind{Group: group, Kind: kind}
}
