package workload

import (
	"fmt"

	"github.com/distribution/reference"
	digest "github.com/opencontainers/go-digest"
)

// Image is a reference to an image, normalized as a node does: a short name gets the registry docker.io, and a reference
// with neither a tag nor a digest gets the tag latest.
type Image struct {
	// Tagged is the reference with its tag and without a digest, for example docker.io/library/nginx:1.29. It is empty
	// for a reference that has a digest and no tag.
	Tagged string
	// Digest is the digest that the reference names. It is empty for a reference with a tag only.
	Digest digest.Digest
	// Repository is the reference without tag and digest.
	Repository string
}

// maxReference is the maximum length of a reference in bytes, as on a node. To parse one takes seconds for each megabyte.
const maxReference = 1024

// ParseImage parses the reference of an image. The error names it.
func ParseImage(s string) (Image, error) {
	if len(s) > maxReference {
		return Image{}, fmt.Errorf("invalid image %.300q: it has %d bytes, a reference has at most %d", s, len(s), maxReference)
	}
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return Image{}, fmt.Errorf("invalid image %.300q: %w", s, err)
	}
	image := Image{Repository: named.Name()}
	if d, ok := named.(reference.Digested); ok {
		image.Digest = d.Digest()
	} else {
		named = reference.TagNameOnly(named)
	}
	if t, ok := named.(reference.Tagged); ok {
		image.Tagged = named.Name() + ":" + t.Tag()
	}
	return image, nil
}

// Pinnable returns the reference for which there can be an ImagePin. It reports false for a reference that names a
// digest, with or without a tag: there is nothing to decide.
func (i Image) Pinnable() (string, bool) { return i.Tagged, i.Digest == "" }
