package policy

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// Scope is for whom a pin holds: "node", or
// "workload/<namespace>/<label>=<value>".
type Scope string

// NodeScope is the whole node.
const NodeScope Scope = "node"

const workloadPrefix = "workload/"

// WorkloadScope is one revision of a workload.
func WorkloadScope(namespace, label, value string) Scope {
	return Scope(workloadPrefix + namespace + "/" + label + "=" + value)
}

// ParseScope reads a scope as an operator writes it; empty is the node. It
// fails with ErrInvalidArgument.
func ParseScope(text string) (Scope, error) {
	if text == "" || text == string(NodeScope) {
		return NodeScope, nil
	}
	rest, ok := strings.CutPrefix(text, workloadPrefix)
	namespace, revision, ok2 := strings.Cut(rest, "/")
	label, value, ok3 := strings.Cut(revision, "=")
	if !ok || !ok2 || !ok3 || namespace == "" || label == "" || value == "" || strings.Contains(namespace, "=") {
		return "", fmt.Errorf("is neither %q nor \"workload/<namespace>/<label>=<value>\": %w", NodeScope, errdefs.ErrInvalidArgument)
	}
	return Scope(text), nil
}

// Namespace is the Kubernetes namespace of a workload; it is empty for the
// node.
func (s Scope) Namespace() string {
	rest, ok := strings.CutPrefix(string(s), workloadPrefix)
	if !ok {
		return ""
	}
	namespace, _, _ := strings.Cut(rest, "/")
	return namespace
}
