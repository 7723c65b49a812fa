package policy

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// Scope is where a pin applies: "node", "lock" for the pins of the node's lock, or one revision of a workload. A revision is identified by a pod label
// ("workload/<namespace>/<label>=<value>") or, if the node uses the Kubernetes API, by its owner
// ("workload/<namespace>/<kind>/<name>/<uid>", and "/<revision>" if the owner has several).
type Scope string

// NodeScope is the whole node.
const NodeScope Scope = "node"

// LockScope has the pins of the node's lock. They apply to all pods, and take precedence over all other pins.
const LockScope Scope = "lock"

const workloadPrefix = "workload/"

// WorkloadScope returns the scope of one revision of a workload that a pod label identifies.
func WorkloadScope(namespace, label, value string) Scope {
	return Scope(workloadPrefix + namespace + "/" + label + "=" + value)
}

// ParseScope parses a scope that an operator enters. An empty text is the node scope. ParseScope returns
// ErrInvalidArgument for an invalid scope.
func ParseScope(text string) (Scope, error) {
	switch Scope(text) {
	case "", NodeScope:
		return NodeScope, nil
	case LockScope:
		return LockScope, nil
	}
	if _, ok := Scope(text).Owner(); ok {
		return Scope(text), nil
	}
	rest, ok := strings.CutPrefix(text, workloadPrefix)
	namespace, revision, ok2 := strings.Cut(rest, "/")
	label, value, ok3 := strings.Cut(revision, "=")
	if !ok || !ok2 || !ok3 || namespace == "" || label == "" || value == "" || strings.Contains(namespace, "=") {
		return "", fmt.Errorf("is none of %q, %q, \"workload/<namespace>/<label>=<value>\" and \"workload/<namespace>/<kind>/<name>/<uid>[/<revision>]\": %w", NodeScope, LockScope, errdefs.ErrInvalidArgument)
	}
	return Scope(text), nil
}

// Namespace returns the Kubernetes namespace of a workload scope. It returns "" for the node scope.
func (s Scope) Namespace() string {
	rest, ok := strings.CutPrefix(string(s), workloadPrefix)
	if !ok {
		return ""
	}
	namespace, _, _ := strings.Cut(rest, "/")
	return namespace
}
