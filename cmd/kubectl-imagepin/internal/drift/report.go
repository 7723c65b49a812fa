// Package drift finds revisions of workloads whose pods run different digests of one image. It reads pods, one at a
// time, and sends no requests.
package drift

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// Report is which digests the pods of each owner run.
type Report struct {
	metav1.TypeMeta `json:",inline"`

	// Pods is the number of pods that were compared: those that have an owner and report a digest.
	Pods int `json:"pods"`
	// Owners are sorted by namespace, kind, name and revision.
	Owners []Owner `json:"owners"`
}

// Owner is a revision of a workload.
type Owner struct {
	Namespace      string `json:"namespace"`
	v1alpha1.Owner `json:",inline"`
	// Drift reports whether a container has drift.
	Drift      bool        `json:"drift"`
	Containers []Container `json:"containers"`
}

// Container is a container of an owner's pods, and an image that they name for it.
type Container struct {
	Name string                 `json:"name"`
	Type workload.ContainerType `json:"type"`
	// Image is the normalized reference. If pods of a revision name different digests of one tag, it is the tag.
	Image string `json:"image"`
	// Drift reports whether the pods run more than one digest.
	Drift bool `json:"drift"`
	// Comparable is false if the digests of some pods are those of manifests and of others those of configurations.
	Comparable bool             `json:"comparable"`
	Builds     []workload.Build `json:"builds"`
}

// Drifted returns the owners that have drift.
func (r *Report) Drifted() []Owner {
	return slices.DeleteFunc(slices.Clone(r.Owners), func(o Owner) bool { return !o.Drift })
}
