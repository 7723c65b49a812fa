package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/offline"
)

// A cold pull needs an image of which the node has no part. Removing the image of the last pull would slow down later
// pulls: for minutes, ext4 does not use the inodes of deleted files again, and searches them for each new file. So each
// pull gets a variant of the image, with one more file in each layer.

// base is the image that variants extend.
type base struct {
	layers []layerData
}

type layerData struct{ plain, packed []byte }

// newBase builds the layers of a tree.
func newBase(t tree) (*base, error) {
	img, err := images.Data(t.options())
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	b := &base{}
	for _, l := range layers {
		var d layerData
		for _, of := range []struct {
			open func() (io.ReadCloser, error)
			into *[]byte
		}{{l.Uncompressed, &d.plain}, {l.Compressed, &d.packed}} {
			r, err := of.open()
			if err != nil {
				return nil, err
			}
			if *of.into, err = io.ReadAll(r); err != nil {
				return nil, err
			}
			if err := r.Close(); err != nil {
				return nil, err
			}
		}
		b.layers = append(b.layers, d)
	}
	return b, nil
}

// fetched returns how many bytes of layers a pull fetches.
func (b *base) fetched() (n int) {
	for _, l := range b.layers {
		n += len(l.packed)
	}
	return n
}

// variant returns the image of a number, and the name of its top snapshot.
func (b *base) variant(number int) (_ v1.Image, top string, err error) {
	platform, err := images.ParsePlatform(images.HostPlatform())
	if err != nil {
		return nil, "", err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	var (
		adds    []mutate.Addendum
		diffIDs []digest.Digest
	)
	for i, d := range b.layers {
		l, err := newVariantLayer(d, fmt.Sprintf("variant-%d-of-layer-%d", number, i))
		if err != nil {
			return nil, "", err
		}
		adds = append(adds, mutate.Addendum{Layer: l})
		diffIDs = append(diffIDs, digest.Digest(l.diffID.String()))
	}
	if img, err = mutate.Append(img, adds...); err != nil {
		return nil, "", err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, "", err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	img, err = mutate.ConfigFile(img, config)
	return img, offline.ChainID(diffIDs), err
}

// variantLayer is a layer with one more file before the others. Its compressed form has two gzip members. All variants
// share the second one.
type variantLayer struct {
	plain, packed  [2][]byte
	digest, diffID v1.Hash
}

func newVariantLayer(d layerData, file string) (*variantLayer, error) {
	var plain, packed bytes.Buffer
	w := tar.NewWriter(&plain)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644}); err != nil {
		return nil, err
	}
	if err := w.Flush(); err != nil { // not closed: the archive continues
		return nil, err
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	l := &variantLayer{plain: [2][]byte{plain.Bytes(), d.plain}, packed: [2][]byte{packed.Bytes(), d.packed}}
	var err error
	if l.diffID, _, err = v1.SHA256(joined(l.plain)); err != nil {
		return nil, err
	}
	l.digest, _, err = v1.SHA256(joined(l.packed))
	return l, err
}

func joined(parts [2][]byte) io.ReadCloser {
	return io.NopCloser(io.MultiReader(bytes.NewReader(parts[0]), bytes.NewReader(parts[1])))
}

func (l *variantLayer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l *variantLayer) DiffID() (v1.Hash, error)             { return l.diffID, nil }
func (l *variantLayer) Size() (int64, error)                 { return int64(len(l.packed[0]) + len(l.packed[1])), nil }
func (l *variantLayer) MediaType() (types.MediaType, error)  { return types.OCILayer, nil }
func (l *variantLayer) Compressed() (io.ReadCloser, error)   { return joined(l.packed), nil }
func (l *variantLayer) Uncompressed() (io.ReadCloser, error) { return joined(l.plain), nil }
