package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// maxOwnerName is how much of an owner's name the name of an ImagePin has, so that the name is at most 253 characters.
	maxOwnerName = 242
	// hashDigits is the length of the hash in the name of an ImagePin.
	hashDigits = 10
)

// Name returns the name of the ImagePin of an owner and an image: the owner's name, a dot, and the first 10 hex digits of
// the SHA-256 of the owner's UID, its revision and the image, separated by NUL. An owner's name of more than 242
// characters is cut. The revision is empty for an owner without one.
func Name(owner Owner, image string) string {
	sum := sha256.Sum256([]byte(string(owner.UID) + "\x00" + owner.Revision + "\x00" + image))
	name := owner.Name
	if len(name) > maxOwnerName {
		name = strings.TrimRight(name[:maxOwnerName], "-.")
	}
	return name + "." + hex.EncodeToString(sum[:])[:hashDigits]
}

// revisionLabel is the label of a pod with its revision, if its controller has more than one at a time
// (ControllerRevisionHashLabelKey in k8s.io/api/apps/v1).
const revisionLabel = "controller-revision-hash"

// OwnerOf returns the revision of the workload that controls a pod. It reports false for a pod without a controller and
// for a pod that a Node controls (a static pod): these have no ImagePins.
func OwnerOf(pod metav1.Object) (Owner, bool) {
	c := metav1.GetControllerOfNoCopy(pod)
	if c == nil || schema.FromAPIVersionAndKind(c.APIVersion, c.Kind).GroupKind() == (schema.GroupKind{Kind: "Node"}) {
		return Owner{}, false
	}
	owner := Owner{APIVersion: c.APIVersion, Kind: c.Kind, Name: c.Name, UID: c.UID}
	if !owner.HasOneRevision() {
		owner.Revision = pod.GetLabels()[revisionLabel]
	}
	return owner, true
}

// HasOneRevision reports whether the pods of an object of the owner's kind all have one revision, also if a user gives
// them the label of revisions.
func (o Owner) HasOneRevision() bool {
	kind := schema.FromAPIVersionAndKind(o.APIVersion, o.Kind).GroupKind()
	return kind == schema.GroupKind{Group: "apps", Kind: "ReplicaSet"} || kind == schema.GroupKind{Group: "batch", Kind: "Job"}
}

// ControllerRevisionName returns the name of the ControllerRevision of an owner with a revision. A StatefulSet labels its
// pods with the name (newRevision in pkg/controller/statefulset), a DaemonSet with the end of the name after its own
// (snapshot in pkg/controller/daemon). Other kinds do one or the other.
func ControllerRevisionName(owner Owner) string {
	if strings.HasPrefix(owner.Revision, owner.Name+"-") {
		return owner.Revision
	}
	return owner.Name + "-" + owner.Revision
}
