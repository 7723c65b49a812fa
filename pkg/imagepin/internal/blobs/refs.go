package blobs

import (
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
)

// Refs are the blobs that the record of a blob references, in order.
type Refs struct {
	// Layers have the media type of a layer.
	Layers []digest.Digest
	// Typed are manifests, image configurations and referrers.
	Typed []digest.Digest
	// Untyped are all others: indexes in an index, and in a manifest the configuration and layers of an image that is not
	// unpacked.
	Untyped []digest.Digest
}

// RefsOf reads the references from a record.
func RefsOf(i content.Info) Refs {
	var r Refs
	for label, value := range i.Labels {
		to := &r.Untyped
		switch {
		case !strings.HasPrefix(label, upstream.ContentRef):
			continue
		case strings.HasPrefix(label, upstream.LayerRef):
			to = &r.Layers
		case strings.HasPrefix(label, upstream.ManifestRef), strings.HasPrefix(label, upstream.ReferrerRef), label == upstream.ConfigRef:
			to = &r.Typed
		}
		*to = append(*to, digest.Digest(value))
	}
	for _, all := range [][]digest.Digest{r.Layers, r.Typed, r.Untyped} {
		slices.Sort(all)
	}
	return r
}

// All returns all references.
func (r Refs) All() []digest.Digest { return slices.Concat(r.Layers, r.Typed, r.Untyped) }

// have reports whether d is referenced.
func (r Refs) have(d digest.Digest) bool {
	return slices.Contains(r.Typed, d) || slices.Contains(r.Untyped, d) || slices.Contains(r.Layers, d)
}

// AddBelow adds recorded blobs with a value to a map, and at any depth what they reference, as containerd's garbage collection
// follows it. It does not change what the map has. refs returns what a blob references, and whether it is recorded.
func AddBelow[V any](to map[digest.Digest]V, value V, refs func(digest.Digest) (_ []digest.Digest, recorded bool), from ...digest.Digest) {
	for _, d := range from {
		if _, has := to[d]; has {
			continue
		}
		if below, recorded := refs(d); recorded {
			to[d] = value
			AddBelow(to, value, refs, below...)
		}
	}
}
