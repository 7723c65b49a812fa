package pull

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	// maxNesting is how deep indexes may stand in indexes.
	maxNesting = 8
	// maxWalked is how many indexes and platform-less manifests of one image
	// are opened in search of a platform.
	maxWalked = 64
	// attestationAnnotation marks what BuildKit puts beside an image in its
	// index: a manifest that is not an image.
	attestationAnnotation = "vnd.docker.reference.type"
)

// errNoMatch is what a search that found no manifest for its platform returns.
var errNoMatch = errors.New("no manifest matches")

// ensure puts the content of a descriptor into the content store.
type ensure func(context.Context, ocispec.Descriptor) error

// chooser finds a target's manifest below a root.
type chooser struct {
	content content.Provider
	ensure  ensure
	runtime runtimeplatform.Runtime

	walked  int
	offered []string
}

// choose gives the path of descriptors from root to the manifest for the
// target: root itself where it is a manifest. The best match wins, and where a
// nested index turns out to have none, the next candidate is looked at.
//
// A root that is a manifest is taken as it is for the node's own platform, as
// containerd does: what it says of its platform is often wrong. For a platform
// that was configured it has to match.
func (c *chooser) choose(ctx context.Context, root ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	path, err := c.search(ctx, root, 0)
	if errors.Is(err, errNoMatch) {
		return nil, &imagepin.Error{
			Reason: imagepin.NoMatchingPlatform, Class: errdefs.ErrNotFound,
			Message: fmt.Sprintf("%s offers %s", root.Digest, listed(c.offered)),
			Hint:    "Publish the image for this platform, or run the pod with a runtime class whose platform is offered.",
		}
	}
	return path, err
}

// listed names platforms that an index offers, each once, and no more than an
// error has room for: an index can offer any number, with names of any length.
func listed(offered []string) string {
	const (
		most    = 16
		longest = 64
	)
	slices.Sort(offered)
	offered = slices.Compact(offered)
	if len(offered) == 0 {
		return "no platform at all"
	}
	var names []string
	for _, platform := range offered[:min(len(offered), most)] {
		names = append(names, imagepin.Bound(platform, longest))
	}
	text := strings.Join(names, ", ")
	if more := len(offered) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (c *chooser) search(ctx context.Context, desc ocispec.Descriptor, depth int) ([]ocispec.Descriptor, error) {
	if c.walked++; c.walked > maxWalked || depth > maxNesting {
		return nil, fmt.Errorf("the index has too many levels or entries (at %s): %w", desc.Digest, errdefs.ErrResourceExhausted)
	}
	if images.IsManifestType(desc.MediaType) {
		if depth == 0 && c.runtime.Native {
			return []ocispec.Descriptor{desc}, nil
		}
		return c.manifest(ctx, desc)
	}
	if !images.IsIndexType(desc.MediaType) {
		return nil, errNoMatch // an artifact of some other kind
	}
	if err := c.ensure(ctx, desc); err != nil {
		return nil, err
	}
	children, err := images.Children(ctx, c.content, desc)
	if err != nil {
		return nil, malformed("index", desc, err)
	}
	for _, child := range c.candidates(children) {
		if err := child.Digest.Validate(); err != nil {
			return nil, malformed("index", desc, err)
		}
		if isManifest := images.IsManifestType(child.MediaType) || images.IsIndexType(child.MediaType); isManifest && child.Size > docker.MaxManifestSize {
			return nil, malformed("index", desc, fmt.Errorf("%s is to have %d bytes, and a manifest may have %d", child.Digest, child.Size, docker.MaxManifestSize))
		}
		if images.IsManifestType(child.MediaType) && child.Platform != nil {
			return []ocispec.Descriptor{desc, child}, nil
		}
		path, err := c.search(ctx, child, depth+1)
		if errors.Is(err, errNoMatch) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return append([]ocispec.Descriptor{desc}, path...), nil
	}
	return nil, errNoMatch
}

// candidates are the children worth looking at, best match first and those
// that name no platform last.
func (c *chooser) candidates(children []ocispec.Descriptor) []ocispec.Descriptor {
	var found []ocispec.Descriptor
	for _, d := range children {
		switch {
		case d.Annotations[attestationAnnotation] != "":
		case d.Platform == nil:
			found = append(found, d)
		case c.runtime.Matcher.Match(*d.Platform):
			found = append(found, d)
		default:
			c.offered = append(c.offered, platforms.FormatAll(*d.Platform))
		}
	}
	slices.SortStableFunc(found, func(a, b ocispec.Descriptor) int {
		switch {
		case a.Platform == nil && b.Platform == nil:
			return 0
		case a.Platform == nil:
			return 1
		case b.Platform == nil:
			return -1
		case c.runtime.Matcher.Less(*a.Platform, *b.Platform):
			return -1
		case c.runtime.Matcher.Less(*b.Platform, *a.Platform):
			return 1
		}
		return 0
	})
	return found
}

// manifest accepts a manifest whose configuration names a matching platform.
func (c *chooser) manifest(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if err := c.ensure(ctx, desc); err != nil {
		return nil, err
	}
	m, err := images.Manifest(ctx, c.content, desc, platforms.All)
	if err != nil {
		return nil, malformed("manifest", desc, err)
	}
	if err := c.ensure(ctx, m.Config); err != nil {
		return nil, err
	}
	p, err := images.ConfigPlatform(ctx, c.content, m.Config)
	if err != nil {
		return nil, malformed("image configuration", m.Config, err)
	}
	if p.Architecture == "" {
		return nil, errNoMatch // it names no platform, as that of an artifact
	}
	if !c.runtime.Matcher.Match(p) {
		c.offered = append(c.offered, platforms.FormatAll(p))
		return nil, errNoMatch
	}
	return []ocispec.Descriptor{desc}, nil
}

func malformed(what string, desc ocispec.Descriptor, err error) error {
	return &imagepin.Error{
		Reason: imagepin.ContentCorrupt, Class: errdefs.ErrFailedPrecondition, Err: err,
		Message: fmt.Sprintf("%s %s cannot be read", what, desc.Digest),
		Hint:    "Push the image again, or use another one: the registry serves what it was given.",
	}
}
