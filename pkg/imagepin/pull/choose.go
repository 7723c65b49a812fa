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
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// errNoMatch is the error of a search that found no manifest for the platform.
var errNoMatch = errors.New("no manifest matches")

// ensure writes the content of a descriptor to the content store.
type ensure func(context.Context, ocispec.Descriptor) error

// chooser finds the manifest for a target, starting at a root descriptor.
type chooser struct {
	content content.Provider
	ensure  ensure
	runtime runtimeplatform.Runtime

	walked  int
	offered []string
}

// choose returns the descriptors from root to the manifest for the target, which is root itself if root is a manifest.
// The best match wins. If a nested index has no match, the search continues with the next candidate.
//
// For the node's own platform, a root that is a manifest is accepted without a platform check, as in containerd: its
// platform is often wrong. For a configured platform it must match.
func (c *chooser) choose(ctx context.Context, root ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	path, err := c.search(ctx, root, 0)
	if errors.Is(err, errNoMatch) {
		return nil, &imagepin.Error{
			Reason: imagepin.NoMatchingPlatform, Class: errdefs.ErrNotFound,
			Message: fmt.Sprintf("%s offers %s", root.Digest, listed(c.offered)),
			Hint:    "Publish the image for this platform, or use a runtime class with one of the offered platforms.",
		}
	}
	return path, err
}

// listed lists the platforms that an index offers, each once, up to the length that fits in an error: an index can have
// any number of platforms, with names of any length.
func listed(offered []string) string {
	const (
		most    = 16
		longest = 64
	)
	slices.Sort(offered)
	offered = slices.Compact(offered)
	if len(offered) == 0 {
		return "no platform"
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
	if c.walked++; c.walked > blobs.MaxWalked || depth > blobs.MaxNesting {
		return nil, fmt.Errorf("the index has too many levels or entries (at %s): %w", desc.Digest, errdefs.ErrResourceExhausted)
	}
	if images.IsManifestType(desc.MediaType) {
		if depth == 0 && c.runtime.Native {
			return []ocispec.Descriptor{desc}, nil
		}
		return c.manifest(ctx, desc)
	}
	if !images.IsIndexType(desc.MediaType) {
		return nil, errNoMatch // another kind of artifact
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
			return nil, malformed("index", desc, fmt.Errorf("descriptor of %s has a size of %d bytes, the maximum for a manifest is %d", child.Digest, child.Size, docker.MaxManifestSize))
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

// candidates returns the children to search, best match first. Those without a platform come last.
func (c *chooser) candidates(children []ocispec.Descriptor) []ocispec.Descriptor {
	var found []ocispec.Descriptor
	for _, d := range children {
		switch {
		case d.Annotations[blobs.AttestationAnnotation] != "":
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

// manifest accepts a manifest if the platform in its configuration matches.
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
		return nil, errNoMatch // no platform, as in an artifact
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
		Hint:    "Push the image again, or use another one. The registry serves the content as it was pushed.",
	}
}
