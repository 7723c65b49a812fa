// Package lazy tests imagepin with eStargz images and the stargz snapshotter, which pulls lazily. The snapshotter is a
// separate process (./snapshotter), which containerd uses as a proxy plugin.
package lazy

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/images/stargz"
)

// StargzIndex returns an index of App images as eStargz, one for each platform.
func StargzIndex(ctx context.Context, opts images.Options, platforms ...string) (v1.ImageIndex, error) {
	var entries []images.Entry
	for _, p := range platforms {
		opts.Platform = p
		app, err := images.App(ctx, opts)
		if err != nil {
			return nil, err
		}
		img, err := stargz.Convert(app)
		if err != nil {
			return nil, err
		}
		entries = append(entries, images.Entry{Image: img})
	}
	return images.Index(images.OCI, entries...)
}

// StargzLayers returns the digests of the layers of an App image as eStargz.
func StargzLayers(ctx context.Context, opts images.Options) ([]v1.Hash, error) {
	app, err := images.App(ctx, opts)
	if err != nil {
		return nil, err
	}
	img, err := stargz.Convert(app)
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	var all []v1.Hash
	for _, l := range m.Layers {
		all = append(all, l.Digest)
	}
	return all, nil
}
