package policy

import (
	"fmt"

	"github.com/imagepin/imagepin/internal/upstream"
)

// NewRevision is what the first container of a revision runs if the node has an image of its tag.
type NewRevision string

const (
	// FromNode leaves that to imagePullPolicy, as containerd does: with IfNotPresent it is the image of the node.
	FromNode NewRevision = "node"
	// FromRegistry resolves the tag first, as if imagePullPolicy were Always: ImageStatus reports the image as absent until the
	// revision has a pin.
	FromRegistry NewRevision = "resolve"
)

// checkNewRevision checks that the other keys of a rule allow that a new revision resolves its tags: there are revisions, and every
// pull queries the registry.
func checkNewRevision(r Rule) *Error {
	if err := oneOf("new_revision", r.NewRevision, FromNode, FromRegistry); err != nil || r.NewRevision == FromNode {
		return err
	}
	switch {
	case r.Consistency != Workload:
		return &Error{Key: "new_revision", Value: string(r.NewRevision), Err: fmt.Errorf("needs version_consistency %q, not %q; or set new_revision = %q for these references", Workload, r.Consistency, FromNode)}
	case r.Behavior != Default && r.Behavior != Always:
		return &Error{Key: "new_revision", Value: string(r.NewRevision), Err: fmt.Errorf("needs pull_behavior %q or %q, not %q; or set new_revision = %q for these references", Default, Always, r.Behavior, FromNode)}
	}
	return nil
}

// Static reports whether kubelet has the pod from another source than the API server, such as a file.
func (p Pod) Static() bool {
	source, ok := p.Annotations[upstream.SourceAnnotation]
	return ok && source != upstream.SourceAPI
}
