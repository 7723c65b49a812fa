package policy

import (
	"regexp"
	"strings"

	"github.com/imagepin/imagepin/internal/upstream"
)

// Owner is the revision of a workload that a pod belongs to, as the Kubernetes API names it.
type Owner struct {
	// Kind, Name and UID are those of the object that controls the pod, for example a ReplicaSet.
	Kind, Name, UID string
	// Revision is the revision of an object that has several, as a StatefulSet and a DaemonSet have. It is empty for
	// others.
	Revision string
}

// OwnerScope returns the scope of one revision of a workload whose owner is known. The UID distinguishes it from an owner
// of the same name that was deleted.
func OwnerScope(namespace string, o Owner) Scope {
	parts := []string{namespace, o.Kind, o.Name, o.UID}
	if o.Revision != "" {
		parts = append(parts, o.Revision)
	}
	return Scope(workloadPrefix + strings.Join(parts, "/"))
}

// Owner returns the owner of a scope. ok is false for the node scope and for a scope by label.
func (s Scope) Owner() (_ Owner, ok bool) {
	parts := strings.Split(strings.TrimPrefix(string(s), workloadPrefix), "/")
	if !strings.HasPrefix(string(s), workloadPrefix) || strings.Contains(string(s), "=") || len(parts) < 4 || len(parts) > 5 {
		return Owner{}, false
	}
	for _, part := range parts {
		if part == "" {
			return Owner{}, false
		}
	}
	o := Owner{Kind: parts[1], Name: parts[2], UID: parts[3]}
	if len(parts) == 5 {
		o.Revision = parts[4]
	}
	return o, true
}

// maxGenerated is how much of an owner's name the name of a pod begins with, in bytes: the API server cuts a name that
// it generates (maxGeneratedNameLength in k8s.io/apiserver/pkg/storage/names).
const maxGenerated = 58

// suffixes are the ends of the names of pods, after the owner's name and a hyphen, by the kind of the owner. The end that the
// API server generates has five characters. Pods of an indexed Job have their index before it.
var suffixes = map[string]*regexp.Regexp{
	"ReplicaSet":            regexp.MustCompile(`^[a-z0-9]{5}$`),
	"ReplicationController": regexp.MustCompile(`^[a-z0-9]{5}$`),
	"DaemonSet":             regexp.MustCompile(`^[a-z0-9]{5}$`),
	"StatefulSet":           regexp.MustCompile(`^[0-9]+$`),
	"Job":                   regexp.MustCompile(`^([0-9]+-)?[a-z0-9]{5}$`),
}

// MayOwn reports whether the name and the revision of a pod are such that o can be its owner. Kinds that name their pods
// in another way than by their own name are not recognized.
func (o Owner) MayOwn(p Pod) bool {
	if o.Revision != p.Labels[upstream.RevisionLabel] {
		return false
	}
	prefix := o.Name + "-"
	if suffix, ok := strings.CutPrefix(p.Name, prefix); ok {
		known := suffixes[o.Kind]
		return known == nil || known.MatchString(suffix)
	}
	return len(prefix) > maxGenerated && strings.HasPrefix(p.Name, prefix[:maxGenerated])
}
