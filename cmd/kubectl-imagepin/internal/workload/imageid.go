package workload

import (
	_ "crypto/sha256" // the algorithms of digests
	_ "crypto/sha512"
	"strings"

	digest "github.com/opencontainers/go-digest"
)

// ImageID is the imageID of a container's status.
type ImageID struct {
	// Digest is the digest of a manifest or an index in a registry, or of a configuration.
	Digest digest.Digest
	// Of is what the digest identifies. Digests can only be compared if they identify the same.
	Of DigestOf
}

// DigestOf is what the digest of an imageID identifies.
type DigestOf string

const (
	// OfManifest is the digest with which a registry serves the image. Most runtimes report the digest that the registry
	// returned for the tag, which is that of an index if the image has more than one platform. Some report the manifest
	// of the node's platform.
	OfManifest DigestOf = "manifest"
	// OfConfig is the digest of the image's configuration. Runtimes report it for an image that was not pulled, such as
	// an imported one.
	OfConfig DigestOf = "config"
)

// ParseImageID parses the imageID of a container's status: REPOSITORY@DIGEST, or the digest of a configuration with or
// without its algorithm. Both can have a prefix such as docker-pullable://. It reports false if there is no digest.
func ParseImageID(s string) (ImageID, bool) {
	s = withoutScheme(s)
	of := OfConfig
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		s, of = s[i+1:], OfManifest
	}
	d := digest.Digest(s)
	if of == OfConfig && !strings.Contains(s, ":") {
		d = digest.NewDigestFromEncoded(digest.SHA256, s)
	}
	if d.Validate() != nil {
		return ImageID{}, false
	}
	return ImageID{Digest: d, Of: of}, true
}

// repositoryOf returns the repository of an imageID that has one, without a tag.
func repositoryOf(imageID string) string {
	name, _, ok := strings.Cut(withoutScheme(imageID), "@")
	if !ok {
		return ""
	}
	return name
}

// withoutScheme removes a prefix such as docker-pullable://.
func withoutScheme(imageID string) string {
	if _, rest, ok := strings.Cut(imageID, "://"); ok {
		return rest
	}
	return imageID
}
