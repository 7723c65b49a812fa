// Package lazy tests imagepin with eStargz images and the stargz snapshotter, which pulls lazily. The snapshotter is a
// separate process (./snapshotter), which containerd uses as a proxy plugin.
package lazy

import (
	"bytes"
	"context"
	"io"

	"github.com/containerd/stargz-snapshotter/estargz"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/imagepin/imagepin/integration/images"
)

// Stargz converts an image to eStargz: gzip tools can read its layers, and a lazy snapshotter can read single files.
func Stargz(img v1.Image) (v1.Image, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	out := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		s, toc, err := stargz(l)
		if err != nil {
			return nil, err
		}
		out, err = mutate.Append(out, mutate.Addendum{
			Layer: s,
			// The snapshotter verifies what it reads with this digest. It does not read layers without it lazily.
			Annotations: map[string]string{estargz.TOCJSONDigestAnnotation: toc},
		})
		if err != nil {
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

// StargzIndex returns an index of App images as eStargz, one for each platform.
func StargzIndex(ctx context.Context, opts images.Options, platforms ...string) (v1.ImageIndex, error) {
	var entries []images.Entry
	for _, p := range platforms {
		opts.Platform = p
		app, err := images.App(ctx, opts)
		if err != nil {
			return nil, err
		}
		img, err := Stargz(app)
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
	img, err := Stargz(app)
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

func stargz(l v1.Layer) (_ v1.Layer, toc string, _ error) {
	r, err := l.Uncompressed()
	if err != nil {
		return nil, "", err
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return nil, "", err
	}
	blob, err := estargz.Build(io.NewSectionReader(bytes.NewReader(plain), 0, int64(len(plain))))
	if err != nil {
		return nil, "", err
	}
	defer blob.Close()
	packed, err := io.ReadAll(blob)
	if err != nil {
		return nil, "", err
	}
	s := &stargzLayer{packed: packed}
	if s.digest, _, err = v1.SHA256(bytes.NewReader(packed)); err != nil {
		return nil, "", err
	}
	s.diffID, err = v1.NewHash(blob.DiffID().String())
	return s, blob.TOCDigest().String(), err
}

// stargzLayer is an eStargz layer in memory.
type stargzLayer struct {
	packed         []byte
	digest, diffID v1.Hash
}

func (l *stargzLayer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *stargzLayer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *stargzLayer) Size() (int64, error)                { return int64(len(l.packed)), nil }
func (l *stargzLayer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
func (l *stargzLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.packed)), nil
}
func (l *stargzLayer) Uncompressed() (io.ReadCloser, error) {
	return estargz.Unpack(io.NewSectionReader(bytes.NewReader(l.packed), 0, int64(len(l.packed))), new(estargz.GzipDecompressor))
}
