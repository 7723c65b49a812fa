package compare

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// manifests are the manifests of a root by platform.
type manifests struct {
	reader  *Reader
	visited int
	found   map[string]ocispec.Descriptor
	order   []string
}

// manifestsOf returns the manifests of a root. If a platform has several, the first counts.
func (r *Reader) manifestsOf(ctx context.Context, root ocispec.Descriptor) (*manifests, error) {
	m := &manifests{reader: r, found: make(map[string]ocispec.Descriptor)}
	return m, m.visit(ctx, root, 0)
}

func (m *manifests) visit(ctx context.Context, desc ocispec.Descriptor, depth int) error {
	if m.visited++; m.visited > blobs.MaxWalked || depth > blobs.MaxNesting {
		return m.reader.malformed(desc, fmt.Errorf("the index has too many levels or entries: %w", errdefs.ErrResourceExhausted))
	}
	if !images.IsIndexType(desc.MediaType) {
		return m.add(ctx, desc, depth > 0)
	}
	var index ocispec.Index
	if err := m.reader.decode(ctx, desc, &index); err != nil {
		return err
	}
	for _, child := range index.Manifests {
		if child.Annotations[blobs.AttestationAnnotation] != "" || !images.IsIndexType(child.MediaType) && !images.IsManifestType(child.MediaType) {
			continue
		}
		if err := m.visit(ctx, child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// add adds a manifest. The configuration has the platform if the descriptor has none. A manifest in an index that has no
// platform at all is not an image.
func (m *manifests) add(ctx context.Context, desc ocispec.Descriptor, inIndex bool) error {
	if desc.Platform == nil {
		var manifest ocispec.Manifest
		if err := m.reader.decode(ctx, desc, &manifest); err != nil {
			return err
		}
		if inIndex && !images.IsConfigType(manifest.Config.MediaType) {
			return nil
		}
		var config ocispec.Image
		if err := m.reader.decode(ctx, manifest.Config, &config); err != nil {
			return err
		}
		if inIndex && config.Architecture == "" {
			return nil
		}
		desc.Platform = &config.Platform
	}
	name := platforms.FormatAll(platforms.Normalize(*desc.Platform))
	if _, known := m.found[name]; !known {
		m.found[name] = desc
		m.order = append(m.order, name)
	}
	return nil
}

// image is a manifest with its configuration.
type image struct {
	manifest ocispec.Manifest
	config   ocispec.Image
	size     int64 // of all of its parts, in bytes
}

// image reads a manifest and its configuration.
func (r *Reader) image(ctx context.Context, desc ocispec.Descriptor) (img image, _ error) {
	if err := r.decode(ctx, desc, &img.manifest); err != nil {
		return img, err
	}
	return img, r.decode(ctx, img.manifest.Config, &img.config)
}
