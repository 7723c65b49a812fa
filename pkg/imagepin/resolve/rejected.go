package resolve

import (
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// isSchema1 reports whether a media type is that of a manifest of Docker's schema 1, signed or not. containerd's resolver
// takes text/plain for the signed one.
func isSchema1(mediaType string) bool {
	return mediaType == images.MediaTypeDockerSchema1Manifest || mediaType == "application/vnd.docker.distribution.manifest.v1+json"
}

// schema1Error returns the error of a manifest of schema 1. Its class is that of containerd's error.
func schema1Error(ref reference.Named, err error) error {
	return &imagepin.Error{
		Reason: imagepin.CannotPullImageManifest, Ref: ref.String(), Class: errdefs.ErrNotImplemented, Err: err,
		Message: "the registry answered with a manifest of Docker's schema 1, or with text/plain",
		Hint:    "Build the image again, or convert it, for example with skopeo copy --format oci. Check that no proxy answers instead of the registry.",
	}
}

// isTooLarge reports whether an error of containerd's resolver is about a manifest that is too large.
func isTooLarge(err error) bool {
	return errdefs.IsNotFound(err) && strings.Contains(err.Error(), upstream.ManifestTooLarge)
}

// tooLargeError returns the error of a manifest that is too large. Its class is not ErrNotFound: the registry has the tag.
func tooLargeError(ref reference.Named, err error) error {
	return &imagepin.Error{
		Reason: imagepin.CannotPullImageManifest, Ref: ref.String(), Class: errdefs.ErrFailedPrecondition, Err: opaque(err),
		Message: fmt.Sprintf("the manifest is larger than %d bytes, the limit of containerd", docker.MaxManifestSize),
		Hint:    "Build the image again with less metadata, such as annotations. The registry has the tag or digest.",
	}
}
