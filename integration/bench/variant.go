package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
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

// layerData is a layer without the end of its archive. The end is in the variant.
type layerData struct {
	packed [][]byte
	zstd   bool // the compression is zstd, not gzip
	// The states of SHA-256 after the archive and after its compressed form, so that a variant hashes only what it adds.
	plainSum, packedSum hash.Cloner
}

// newBase builds the layers of a tree.
func newBase(ctx context.Context, t tree) (*base, error) {
	program, err := t.program(ctx)
	if err != nil {
		return nil, err
	}
	if t.piece > 0 {
		l, err := piecedLayer(t, program)
		return &base{[]layerData{l}}, err
	}
	opts := t.options()
	opts.Compression = images.Uncompressed
	if program != nil {
		opts.Files[0][programPath] = program
	}
	img, err := images.Data(opts)
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	b := &base{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			return nil, err
		}
		plain, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		plain = plain[:len(plain)-archiveEnd]
		pack := gzipped
		if t.zstd {
			pack = zstded
		}
		packed, err := pack(plain)
		if err != nil {
			return nil, err
		}
		b.layers = append(b.layers, layerData{packed: [][]byte{packed}, zstd: t.zstd, plainSum: sumOf(plain), packedSum: sumOf(packed)})
	}
	return b, nil
}

// archiveEnd is the size of the end of a tar archive: two empty blocks.
const archiveEnd = 2 * 512

func gzipped(plain []byte) ([]byte, error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(plain); err != nil {
		return nil, err
	}
	err = z.Close()
	return buf.Bytes(), err
}

func zstded(plain []byte) ([]byte, error) {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		return nil, err
	}
	return z.EncodeAll(plain, nil), z.Close()
}

// sumOf returns the state of SHA-256 after the parts.
func sumOf(parts ...[]byte) hash.Cloner {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return h.(hash.Cloner) // all hashes of the standard library are
}

// sumAfter returns the digest of what a state has seen and of what follows.
func sumAfter(state hash.Cloner, tail []byte) (v1.Hash, error) {
	h, err := state.Clone()
	if err != nil {
		return v1.Hash{}, err
	}
	h.Write(tail)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}, nil
}

// fetched returns how many bytes of layers a pull fetches.
func (b *base) fetched() (n int) {
	for _, l := range b.layers {
		n += l.fetched()
	}
	return n
}

// fetched returns how many bytes of the layer a pull fetches.
func (d layerData) fetched() (n int) {
	for _, part := range d.packed {
		n += len(part)
	}
	return n
}

// variant returns the image of a number, its layers, and the name of its top snapshot.
func (b *base) variant(number int) (_ v1.Image, layers []*variantLayer, top string, err error) {
	platform, err := images.ParsePlatform(images.HostPlatform())
	if err != nil {
		return nil, nil, "", err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	var (
		adds    []mutate.Addendum
		diffIDs []digest.Digest
	)
	for i, d := range b.layers {
		l, err := newVariantLayer(d, fmt.Sprintf("variant-%d-of-layer-%d", number, i))
		if err != nil {
			return nil, nil, "", err
		}
		layers = append(layers, l)
		adds = append(adds, mutate.Addendum{Layer: l})
		diffIDs = append(diffIDs, digest.Digest(l.diffID.String()))
	}
	if img, err = mutate.Append(img, adds...); err != nil {
		return nil, nil, "", err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, nil, "", err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	config.Config.Entrypoint = []string{programPath}
	img, err = mutate.ConfigFile(img, config)
	return img, layers, offline.ChainID(diffIDs), err
}

// variantLayer is a layer with one more file after the others. Its compressed form has two gzip members or zstd frames.
// All variants share the first one.
type variantLayer struct {
	packed         [][]byte
	zstd           bool
	digest, diffID v1.Hash
}

func newVariantLayer(d layerData, file string) (*variantLayer, error) {
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644}); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	pack := gzipped
	if d.zstd {
		pack = zstded
	}
	tail, err := pack(plain.Bytes())
	if err != nil {
		return nil, err
	}
	l := &variantLayer{packed: append(slices.Clip(d.packed), tail), zstd: d.zstd}
	if l.diffID, err = sumAfter(d.plainSum, plain.Bytes()); err != nil {
		return nil, err
	}
	l.digest, err = sumAfter(d.packedSum, tail)
	return l, err
}

func (l *variantLayer) Digest() (v1.Hash, error) { return l.digest, nil }
func (l *variantLayer) DiffID() (v1.Hash, error) { return l.diffID, nil }

func (l *variantLayer) Size() (n int64, _ error) {
	for _, part := range l.packed {
		n += int64(len(part))
	}
	return n, nil
}

func (l *variantLayer) MediaType() (types.MediaType, error) {
	if l.zstd {
		return types.OCILayerZStd, nil
	}
	return types.OCILayer, nil
}

func (l *variantLayer) Compressed() (io.ReadCloser, error) {
	var parts []io.Reader
	for _, part := range l.packed {
		parts = append(parts, bytes.NewReader(part))
	}
	return io.NopCloser(io.MultiReader(parts...)), nil
}

func (l *variantLayer) Uncompressed() (io.ReadCloser, error) {
	r, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	return compression.DecompressStream(r)
}
