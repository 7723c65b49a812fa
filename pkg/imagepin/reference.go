package imagepin

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
)

// MaxReference is the maximum length of a reference in bytes. A host has at most 253 characters, a repository 255, a tag 128 and a
// digest 135. To parse a reference takes seconds for each megabyte.
const MaxReference = 1024

// CheckReference fails with [InvalidReference] (ErrInvalidArgument) if a name is too long to be a reference. It does not parse it.
func CheckReference(name string) error {
	if len(name) <= MaxReference {
		return nil
	}
	return &Error{
		Reason: InvalidReference, Ref: fmt.Sprintf("%q", Bound(name, 256)), Class: errdefs.ErrInvalidArgument,
		Message: fmt.Sprintf("it has %d bytes, a reference has at most %d", len(name), MaxReference),
	}
}

// ParseReference normalizes a reference as containerd's CRI does: a short name gets the registry docker.io, a missing
// tag becomes latest, and a digest overrides a tag. It fails with [InvalidReference] (ErrInvalidArgument).
func ParseReference(name string) (reference.Named, error) {
	if err := CheckReference(name); err != nil {
		return nil, err
	}
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
