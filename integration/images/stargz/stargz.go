// Package stargz converts images to eStargz. A package of its own for its dependency.
package stargz

import (
	"bytes"
	"io"

	"github.com/containerd/stargz-snapshotter/estargz"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/imagepin/imagepin/integration/images"
)

// Convert converts an image to eStargz: gzip tools can read its layers, and a lazy snapshotter can read single files.
func Convert(img v1.Image) (v1.Image, error) {
	return images.Convert(img, func(l v1.Layer) (mutate.Addendum, error) {
		s, toc, err := stargz(l)
		return mutate.Addendum{
			Layer: s,
			// The snapshotter verifies what it reads with this digest. It does not read layers without it lazily.
			Annotations: map[string]string{estargz.TOCJSONDigestAnnotation: toc},
		}, err
	})
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
