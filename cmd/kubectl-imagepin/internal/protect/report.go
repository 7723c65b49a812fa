package protect

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status is what a run has found or done.
type Status string

// The statuses of digests that the cluster needs.
const (
	// Needed is the status without a request to the registry.
	Needed Status = "Needed"
	// Protected is a digest whose tag means it.
	Protected Status = "Protected"
	// Tagged is a digest whose tag was set.
	Tagged Status = "Tagged"
	// OtherTag is a digest that a tag means with which the cluster names it. A push can move that tag.
	OtherTag Status = "OtherTag"
	// Untagged is a digest that no known tag means: a retention rule can delete it.
	Untagged Status = "Untagged"
	// Gone is a digest that the registry does not have.
	Gone Status = "Gone"
	// Refused is a digest for which the registry refuses to read it, or to set the tag.
	Refused Status = "Refused"
	// Conflict is a digest whose tag means another digest that the cluster needs.
	Conflict Status = "Conflict"
	// Failed is a digest for which the registry has not answered, or with a failure.
	Failed Status = "Failed"
)

// The statuses of tags that this cluster has set, and whose digests it does not need.
const (
	// Removed is a tag that was deleted.
	Removed Status = "Removed"
	// Kept is a tag that could not be deleted.
	Kept Status = "Kept"
)

// Item is a digest, or a tag of a digest that nothing needs.
type Item struct {
	Repository string `json:"repository"`
	// Digest is empty for a tag that was not looked up.
	Digest string `json:"digest,omitempty"`
	Tag    string `json:"tag"`
	Status Status `json:"status"`
	// Reason is one line.
	Reason string `json:"reason,omitempty"`
	// OtherTag is the tag of the status OtherTag.
	OtherTag string `json:"otherTag,omitempty"`
	// Since is since when nothing needs the digest.
	Since  *metav1.Time `json:"since,omitempty"`
	UsedBy []User       `json:"usedBy"`
}

// Report is what a run has found and done.
type Report struct {
	metav1.TypeMeta `json:",inline"`

	// Cluster is the part of tags that identifies the cluster.
	Cluster Cluster `json:"cluster"`
	DryRun  string  `json:"dryRun,omitempty"`
	// Unknown is the number of running containers of selected repositories whose imageID is no digest in a repository.
	Unknown int `json:"unknown"`
	// Excluded is the number of digests in repositories that were not selected.
	Excluded int `json:"excluded"`
	// Items are sorted by repository and tag.
	Items []Item `json:"items"`
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

func (r *Report) sort() {
	slices.SortFunc(r.Items, func(x, y Item) int {
		return cmp.Or(cmp.Compare(x.Repository, y.Repository), cmp.Compare(x.Tag, y.Tag), cmp.Compare(x.Digest, y.Digest))
	})
}
