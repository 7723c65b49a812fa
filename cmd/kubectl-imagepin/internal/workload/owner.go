package workload

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// OwnerOf returns the revision of the workload that controls a pod, as a node finds it. It reports false for a pod without
// a controller and for a static pod, whose controller is its node: these have no ImagePins.
func OwnerOf(pod metav1.Object) (v1alpha1.Owner, bool) {
	if _, isMirror := pod.GetAnnotations()[corev1.MirrorPodAnnotationKey]; isMirror {
		return v1alpha1.Owner{}, false
	}
	return v1alpha1.OwnerOf(pod)
}

// HasOneTemplate reports whether all pods of an owner come from one pod template, so that their containers name the
// same images. A controller that Kubernetes does not know may replace its pods one by one with other images.
func HasOneTemplate(owner v1alpha1.Owner) bool { return owner.Revision != "" || owner.HasOneRevision() }
