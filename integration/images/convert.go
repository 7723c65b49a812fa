package images

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// Convert returns an image with other layers, which have the same files.
func Convert(img v1.Image, layer func(v1.Layer) (mutate.Addendum, error)) (v1.Image, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	out := mutate.ConfigMediaType(mutate.MediaType(empty.Image, manifest.MediaType), manifest.Config.MediaType)
	for _, l := range layers {
		add, err := layer(l)
		if err != nil {
			return nil, err
		}
		if out, err = mutate.Append(out, add); err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	now, err := out.ConfigFile()
	if err != nil {
		return nil, err
	}
	config.RootFS, config.History = now.RootFS, now.History
	return mutate.ConfigFile(out, config)
}
