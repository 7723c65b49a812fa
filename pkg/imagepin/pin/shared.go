package pin

import "github.com/imagepin/imagepin/pkg/imagepin/policy"

// Shared is what a cluster has for a reference and a pod. The digest of an ImagePin is not in it, because it can change until the
// decision.
type Shared struct {
	// Pod is the pod with its owner. It is provisional if the owner is not known because the Kubernetes API did not answer.
	Pod policy.Pod
	// Provisional is the pin of the node that the next pull or container claims for the owner, or nil.
	Provisional *Pin
	// Dropped reports that the cluster does not have the pin any more of which the node has a copy. The next pull or container
	// removes the copy.
	Dropped bool
}
