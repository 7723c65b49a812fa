package pin

import (
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// FirstUse is a pin that the first use of a reference makes.
type FirstUse struct {
	ID ID
	// Namespace is the Kubernetes namespace of the pod that the pin is made for. It is empty if there is no pod.
	Namespace string
	Retain    bool
	// Pod is the pod that the pin is claimed for in the cluster. It has neither an owner nor is it provisional if the pin is
	// the node's own.
	Pod policy.Pod
	// Registry is what the registry returned for the tag before another node was found to have pinned it, or "".
	Registry digest.Digest
}

// InCluster reports whether the pin is one of the cluster.
func (u FirstUse) InCluster() bool { return u.Pod.Owner != nil || u.Pod.Provisional }
