package pull

import (
	"context"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// MissingParts is what a pull would have to fetch or unpack.
type MissingParts struct {
	// Manifest is the digest of the target's manifest. It is empty if the content on the node does not determine it.
	Manifest digest.Digest
	Parts    []MissingPart
}

// MissingPart is a part of an image that is not on the node: an index, a manifest, a configuration, a layer (with its
// size in bytes) or a snapshot. Name is its digest or chain ID.
type MissingPart struct {
	Kind string
	Name string
	Size int64
}

// Missing returns what a target lacks to run root. It cannot look below a missing part, and omits what that references. forGuests means
// that the snapshotter gets no files, see package guestpull: layers are not missing.
func Missing(ctx context.Context, store content.Store, sn snapshots.Snapshotter, forGuests bool, root ocispec.Descriptor, rt runtimeplatform.Runtime) (MissingParts, error) {
	var l MissingParts
	missing := func(what string, d ocispec.Descriptor) bool {
		if here, err := blobs.Exists(ctx, store, d.Digest); here || err != nil {
			return false
		}
		l.Parts = append(l.Parts, MissingPart{Kind: what, Name: d.Digest.String(), Size: d.Size})
		return true
	}
	kind := "index"
	if images.IsManifestType(root.MediaType) {
		kind = "manifest"
	}
	if missing(kind, root) {
		return l, nil
	}
	nothing := func(context.Context, ocispec.Descriptor) error { return nil }
	path, err := (&chooser{content: store, runtime: rt, ensure: nothing}).choose(ctx, root)
	if err != nil {
		return l, err
	}
	manifest := path[len(path)-1]
	l.Manifest = manifest.Digest
	if manifest.Digest != root.Digest && missing("manifest", manifest) {
		return l, nil
	}
	m, err := images.Manifest(ctx, store, manifest, platforms.All)
	if err != nil {
		return l, err
	}
	if missing("configuration", m.Config) {
		return l, nil
	}
	e, err := Describe(ctx, store, manifest)
	if err != nil || e.ChainID == "" {
		return l, err
	}
	if _, err := sn.Stat(ctx, e.ChainID.String()); err == nil {
		return l, nil // unpacked: the layers are not needed
	} else if !errdefs.IsNotFound(err) {
		return l, err
	}
	l.Parts = append(l.Parts, MissingPart{Kind: "snapshot", Name: e.ChainID.String()})
	if forGuests {
		return l, nil
	}
	for _, d := range m.Layers {
		missing("layer", d)
	}
	return l, nil
}
