package imagepin

import (
	"fmt"

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
