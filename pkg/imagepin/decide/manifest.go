package decide

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// maxIndex is the maximum size of an index that is read from a registry, in bytes. containerd has the same limit.
const maxIndex = 8 << 20

// onlyWhole fails if root is the manifest of one platform, and the node or the tag in the registry has an index that
// lists it. A pin to it breaks the other platforms, and the tag is never at this digest.
func (d *Decider) onlyWhole(ctx context.Context, s SetPin, root ocispec.Descriptor) error {
	if !images.IsManifestType(root.MediaType) {
		return nil
	}
	index := d.indexOnNode(s)
	if index == "" && !d.hadTag(s) {
		index = d.indexInRegistry(ctx, s)
	}
	if index == "" {
		return nil
	}
	return &imagepin.Error{
		Reason: imagepin.InvalidRequest, Class: errdefs.ErrInvalidArgument,
		Message: fmt.Sprintf("digest %q: it is the manifest of one platform in the index %s", s.Digest, index),
		Hint: fmt.Sprintf("Pin the index: imagepin pin set %s %s --scope %s\nTo pin the manifest, which breaks all other platforms, add --force.",
			s.Ref, index, s.Scope),
	}
}

// indexOnNode returns the digest of an index of the repository on the node that lists the manifest; "" if there is none.
func (d *Decider) indexOnNode(s SetPin) digest.Digest {
	for _, e := range d.images.ByManifest(s.Digest) {
		if imagepin.InRepository(e.Ref, s.Ref.Name()) && images.IsIndexType(e.Root.MediaType) {
			return e.Root.Digest
		}
	}
	return ""
}

// hadTag reports whether the digest is what the registry returned for a tag of the repository that is on the node.
func (d *Decider) hadTag(s SetPin) bool {
	return slices.ContainsFunc(d.images.ByRoot(s.Digest), func(e imagepin.Entry) bool {
		return imagepin.InRepository(e.Ref, s.Ref.Name()) && !strings.Contains(e.Ref, "@")
	})
}

// indexInRegistry returns the digest of the tag in the registry if it is an index that lists the manifest; otherwise "".
// If the registry does not have the tag or does not answer, a pin to the manifest is allowed.
func (d *Decider) indexInRegistry(ctx context.Context, s SetPin) digest.Digest {
	v, err := d.resolve(ctx, Request{Ref: s.Ref, Credential: s.Credential}, s.Ref, "")
	if err != nil || !images.IsIndexType(v.Root.MediaType) {
		return ""
	}
	index, err := readIndex(ctx, v.Session, v.Root)
	if err != nil {
		log.G(ctx).WithError(err).WithField("ref", s.Ref.String()).Info("cannot read the index of the tag, pinning to a manifest")
		return ""
	}
	if !slices.ContainsFunc(index.Manifests, func(m ocispec.Descriptor) bool { return m.Digest == s.Digest }) {
		return ""
	}
	return v.Root.Digest
}

// readIndex reads an index from the registry and verifies its digest.
func readIndex(ctx context.Context, s *resolve.Session, desc ocispec.Descriptor) (index ocispec.Index, _ error) {
	fetcher, err := s.Fetcher(ctx)
	if err != nil {
		return index, err
	}
	rc, err := fetcher.Fetch(ctx, desc)
	if err != nil {
		return index, err
	}
	defer rc.Close()
	b, err := io.ReadAll(io.LimitReader(rc, maxIndex))
	if err != nil {
		return index, err
	}
	if got := desc.Digest.Algorithm().FromBytes(b); got != desc.Digest {
		return index, fmt.Errorf("index %s has the digest %s", desc.Digest, got)
	}
	return index, json.Unmarshal(b, &index)
}
