package images

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// mediaTypes of layers.
var mediaTypes = map[Format]map[Compression]types.MediaType{
	OCI: {Gzip: types.OCILayer, Zstd: types.OCILayerZStd, Uncompressed: types.OCIUncompressedLayer},
	Docker: {
		Gzip:         types.DockerLayer,
		Zstd:         "application/vnd.docker.image.rootfs.diff.tar.zstd",
		Uncompressed: types.DockerUncompressedLayer,
	},
}

// tarLayer is a layer in memory. The package tarball of go-containerregistry would compress uncompressed layers.
type tarLayer struct {
	plain, packed  []byte
	diffID, digest v1.Hash
	mediaType      types.MediaType
}

// Layer returns a layer of a tar archive, compressed with gzip.
func Layer(archive []byte) (v1.Layer, error) { return newLayer(archive, Gzip, OCI) }

func newLayer(plain []byte, c Compression, f Format) (v1.Layer, error) {
	mediaType, ok := mediaTypes[f][c]
	if !ok {
		return nil, fmt.Errorf("no layers of compression %q in format %q", c, f)
	}
	packed, err := compress(plain, c)
	if err != nil {
		return nil, err
	}
	l := &tarLayer{plain: plain, packed: packed, mediaType: mediaType}
	if l.diffID, _, err = v1.SHA256(bytes.NewReader(plain)); err != nil {
		return nil, err
	}
	l.digest, _, err = v1.SHA256(bytes.NewReader(packed))
	return l, err
}

func compress(plain []byte, c Compression) ([]byte, error) {
	var buf bytes.Buffer
	var w io.WriteCloser
	var err error
	switch c {
	case Gzip:
		w, err = gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	case Zstd:
		// With more than one worker, the output would depend on the number of processors.
		w, err = zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	default:
		return plain, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func (l *tarLayer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l *tarLayer) DiffID() (v1.Hash, error)             { return l.diffID, nil }
func (l *tarLayer) Size() (int64, error)                 { return int64(len(l.packed)), nil }
func (l *tarLayer) MediaType() (types.MediaType, error)  { return l.mediaType, nil }
func (l *tarLayer) Compressed() (io.ReadCloser, error)   { return reader(l.packed), nil }
func (l *tarLayer) Uncompressed() (io.ReadCloser, error) { return reader(l.plain), nil }

func reader(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }
