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

// Lack is what a pull would have to get.
type Lack struct {
	// Manifest is the target's; empty where that cannot be told from what is on
	// the node.
	Manifest digest.Digest
	Blobs    []LackedBlob
}

// LackedBlob is one thing that is not on the node: an index, a manifest, a
// configuration, a layer (with its size in bytes), or a snapshot, by its digest
// or chain ID.
type LackedBlob struct {
	What string
	Name string
	Size int64
}

// Missing finds what a target lacks to run root. What lies behind something that
// is missing is not known, and left out.
func Missing(ctx context.Context, store content.Store, sn snapshots.Snapshotter, root ocispec.Descriptor, rt runtimeplatform.Runtime) (Lack, error) {
	var l Lack
	lacks := func(what string, d ocispec.Descriptor) bool {
		if here, err := blobs.Here(ctx, store, d.Digest); here || err != nil {
			return false
		}
		l.Blobs = append(l.Blobs, LackedBlob{What: what, Name: d.Digest.String(), Size: d.Size})
		return true
	}
	kind := "index"
	if images.IsManifestType(root.MediaType) {
		kind = "manifest"
	}
	if lacks(kind, root) {
		return l, nil
	}
	nothing := func(context.Context, ocispec.Descriptor) error { return nil }
	path, err := (&chooser{content: store, runtime: rt, ensure: nothing}).choose(ctx, root)
	if err != nil {
		return l, err
	}
	manifest := path[len(path)-1]
	l.Manifest = manifest.Digest
	if manifest.Digest != root.Digest && lacks("manifest", manifest) {
		return l, nil
	}
	m, err := images.Manifest(ctx, store, manifest, platforms.All)
	if err != nil {
		return l, err
	}
	if lacks("configuration", m.Config) {
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
	l.Blobs = append(l.Blobs, LackedBlob{What: "snapshot", Name: e.ChainID.String()})
	for _, d := range m.Layers {
		lacks("layer", d)
	}
	return l, nil
}
