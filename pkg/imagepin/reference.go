package imagepin

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
)

// ParseReference normalizes a reference as containerd's CRI does: a short name gets the registry docker.io, a missing
// tag becomes latest, and a digest overrides a tag. It fails with [InvalidReference] (ErrInvalidArgument).
func ParseReference(name string) (reference.Named, error) {
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return nil, &Error{
			Reason: InvalidReference, Ref: fmt.Sprintf("%q", name), Class: errdefs.ErrInvalidArgument, Err: err,
			Hint: "Write it as [registry/]repository[:tag][@digest].",
		}
	}
	return ref, nil
}

// InRepository reports whether a normalized reference is in a repository, given by its full name. It parses nothing: an
// image can have hundreds of references.
func InRepository(ref, repository string) bool {
	rest, ok := strings.CutPrefix(ref, repository)
	return ok && (rest == "" || rest[0] == ':' || rest[0] == '@')
}
