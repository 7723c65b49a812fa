package main

import (
	"fmt"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// packages are the packages in the image, a layer each.
var packages = []string{"imagepin", "imagepin-containerd"}

// index returns the index of the images of all architectures.
func (b *build) index(archs []string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range archs {
		img, err := b.image(arch)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index, nil
}

func (b *build) image(arch string) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: b.created},
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/imagepin"},
			Env:        []string{"PATH=/usr/bin"},
			Labels: map[string]string{
				"org.opencontainers.image.title":    "imagepin node image",
				"org.opencontainers.image.version":  b.version,
				"org.opencontainers.image.source":   "https://github.com/imagepin/imagepin",
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		file := filepath.Join(b.dist, fmt.Sprintf("%s-%s-linux-%s.tar.gz", p, b.version, arch))
		layer, err := tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{
			Layer: layer, MediaType: types.OCILayer,
			History: v1.History{Created: v1.Time{Time: b.created}, CreatedBy: "package " + p},
		})
		if err != nil {
			return nil, err
		}
	}
	return img, nil
}
