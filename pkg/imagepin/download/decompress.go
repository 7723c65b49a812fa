package download

import (
	"bufio"
	"context"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/typeurl/v2"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/gunzip"
)

// containerd uses the stream processor that was registered last. This one is registered before those of the operator's
// configuration, which containerd registers when it starts, and after containerd's own decompressor, which it replaces only
// for [Applier] and [Decompressing]. It needs less processor time than igzip, which containerd's decompressor runs if it is
// installed.
func init() { diff.RegisterProcessor(decompressHandler) }

type decompressorKey struct{}

// withDecompressor returns a context with which [diff.GetProcessor] uses the decompressor of this package.
func withDecompressor(ctx context.Context) context.Context {
	return context.WithValue(ctx, decompressorKey{}, true)
}

// Decompressing returns an applier of layers in cs that is another one, with the decompressor of [Applier]. The other one has
// to use containerd's stream processors, as all differs of containerd do, in this process: a containerd behind a socket uses
// its own decompressor.
func Decompressing(cs content.Provider, other diff.Applier) diff.Applier {
	return decompressing{other, cs}
}

type decompressing struct {
	diff.Applier
	content content.Provider
}

// Apply implements diff.Applier.
func (d decompressing) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (_ ocispec.Descriptor, err error) {
	if desc.MediaType, err = detectStored(ctx, d.content, desc); err != nil {
		return ocispec.Descriptor{}, err
	}
	if !IsPlain(ctx) {
		ctx = withDecompressor(ctx)
	}
	return d.Applier.Apply(ctx, desc, mounts, opts...)
}

func decompressHandler(ctx context.Context, mediaType string) (diff.StreamProcessorInit, bool) {
	if ctx.Value(decompressorKey{}) == nil {
		return nil, false
	}
	compressed, err := images.DiffCompression(ctx, mediaType)
	return newDecompressor, err == nil && compressed != ""
}

// decompressor is the stream processor of compressed layers.
type decompressor struct{ io.ReadCloser }

// newDecompressor returns the archive of a layer. As containerd's decompressor, it goes by the first bytes of the layer,
// not by its media type. It decompresses gzip itself, the rest is containerd's.
func newDecompressor(_ context.Context, layer diff.StreamProcessor, _ map[string]typeurl.Any) (diff.StreamProcessor, error) {
	const longestMagic = 10 // as in containerd
	// Larger reads bypass the buffer.
	r := bufio.NewReaderSize(layer, longestMagic)
	magic, err := r.Peek(longestMagic)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if compression.DetectCompression(magic) != compression.Gzip {
		archive, err := compression.DecompressStream(r)
		if err != nil {
			return nil, err
		}
		return decompressor{archive}, nil
	}
	archive, err := gunzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	return decompressor{io.NopCloser(archive)}, nil
}

// MediaType implements diff.StreamProcessor.
func (decompressor) MediaType() string { return ocispec.MediaTypeImageLayer }
