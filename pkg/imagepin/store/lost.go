package store

import (
	"context"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// NeededBy returns a function that reports whether any of the entries needs a record: it carries the entry, or it is the
// record of its image ID or of its tag.
func NeededBy(entries []imagepin.Entry) func(images.Image) bool {
	names, tags := make(map[string]bool), make(map[string]digest.Digest)
	for _, e := range entries {
		names[e.Record], names[e.ImageID.String()] = true, true
		tags[e.Ref] = e.RecordTarget.Digest
	}
	return func(img images.Image) bool { return names[img.Name] || tags[img.Name] == img.Target.Digest }
}

// neededByLost reports whether a record without a key carries a lost key, or is the tag of an image that has one.
func (s *presence) neededByLost(ctx context.Context, img images.Image) (bool, error) {
	if len(s.lostOn(img)) > 0 {
		return true, nil
	}
	ref, err := reference.ParseNamed(img.Name)
	if err != nil {
		return false, nil // it is an image ID, or cannot have a key
	}
	name, err := RecordName(ref, img.Target.Digest)
	if err != nil || name == img.Name {
		return false, nil
	}
	byDigest, err := s.record(ctx, name)
	if err != nil || byDigest == nil {
		return false, err
	}
	return slices.ContainsFunc(s.lostOn(*byDigest), func(e imagepin.Entry) bool { return e.Ref == img.Name }), nil
}
