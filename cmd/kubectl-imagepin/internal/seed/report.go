package seed

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// Status is what was done for an image of a revision, or why nothing was done.
type Status string

// The statuses.
const (
	// Created: there was no ImagePin, and it was created.
	Created Status = "Created"
	// Unchanged: the ImagePin has the digest of the lock.
	Unchanged Status = "Unchanged"
	// Moved: the ImagePin had another digest, and was moved to that of the lock.
	Moved Status = "Moved"
	// Conflict: the ImagePin has another digest, and was not changed.
	Conflict Status = "Conflict"
	// NotInLock: the lock does not name the image.
	NotInLock Status = "NotInLock"
	// NoRevision: the workload has no revision, because each of its pods or Jobs gets its own: a CronJob, or a pod without
	// a controller.
	NoRevision Status = "NoRevision"
)

// Report is the result for each image of each revision.
type Report struct {
	metav1.TypeMeta `json:",inline"`

	// DryRun is "client" or "server" if nothing was written, otherwise empty.
	DryRun string `json:"dryRun,omitempty"`
	// Items are sorted by namespace, owner and image.
	Items []Item `json:"items"`
}

// Item is the result for an image of a revision.
type Item struct {
	Namespace string `json:"namespace"`
	// Owner is the revision. With NoRevision, it is the workload.
	Owner v1alpha1.Owner `json:"owner"`
	// Image is the normalized reference with its tag.
	Image string `json:"image"`
	// Digest is that of the lock. It is empty if the lock does not name the image.
	Digest string `json:"digest,omitempty"`
	// ImagePin is the name of the ImagePin. It is empty if there is none.
	ImagePin string `json:"imagePin,omitempty"`
	Status   Status `json:"status"`
	// Other is the digest that the ImagePin has with Conflict, or had before with Moved.
	Other string `json:"otherDigest,omitempty"`
	// By is the node and the pod that created an ImagePin with another digest. It is absent if a person did.
	By *v1alpha1.Claimer `json:"by,omitempty"`
}

// Sort sorts the items.
func (r *Report) Sort() {
	slices.SortFunc(r.Items, func(x, y Item) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Owner.Kind, y.Owner.Kind), cmp.Compare(x.Owner.Name, y.Owner.Name),
			cmp.Compare(x.Owner.Revision, y.Owner.Revision), cmp.Compare(x.Owner.UID, y.Owner.UID), cmp.Compare(x.Image, y.Image))
	})
}

// Count returns how many items have one of some statuses.
func (r *Report) Count(statuses ...Status) int {
	n := 0
	for _, i := range r.Items {
		if slices.Contains(statuses, i.Status) {
			n++
		}
	}
	return n
}
