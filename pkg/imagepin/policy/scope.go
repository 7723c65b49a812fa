package policy

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// Scope is where a pin applies: "node", or one revision of a workload. A revision is identified by a pod label
// ("workload/<namespace>/<label>=<value>") or, if the node uses the Kubernetes API, by its owner
// ("workload/<namespace>/<kind>/<name>/<uid>", and "/<revision>" if the owner has several).
type Scope string

// NodeScope is the whole node.
const NodeScope Scope = "node"

const workloadPrefix = "workload/"

// WorkloadScope returns the scope of one revision of a workload that a pod label identifies.
func WorkloadScope(namespace, label, value string) Scope {
	return Scope(workloadPrefix + namespace + "/" + label + "=" + value)
}

// ParseScope parses a scope that an operator enters. An empty text is the node scope. ParseScope returns
// ErrInvalidArgument for an invalid scope.
func ParseScope(text string) (Scope, error) {
	if text == "" || text == string(NodeScope) {
		return NodeScope, nil
	}
	if _, ok := Scope(text).Owner(); ok {
		return Scope(text), nil
	}
	rest, ok := strings.CutPrefix(text, workloadPrefix)
	namespace, revision, ok2 := strings.Cut(rest, "/")
	label, value, ok3 := strings.Cut(revision, "=")
	if !ok || !ok2 || !ok3 || namespace == "" || label == "" || value == "" || strings.Contains(namespace, "=") {
		return "", fmt.Errorf("is neither %q nor \"workload/<namespace>/<label>=<value>\" nor \"workload/<namespace>/<kind>/<name>/<uid>[/<revision>]\": %w", NodeScope, errdefs.ErrInvalidArgument)
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
