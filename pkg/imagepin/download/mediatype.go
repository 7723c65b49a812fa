package download

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// headSize is how much of a layer byContent needs, in bytes: the first header of a tar archive.
const headSize = 512

// isUncompressed reports whether a media type is that of an uncompressed layer, for which containerd does not look at the
// content, as it does for all others (DiffCompression in core/images).
func isUncompressed(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageLayer || mediaType == foreignLayer
}

// foreignLayer is a deprecated media type that images still have.
const foreignLayer = "application/vnd.oci.image.layer.nondistributable.v1.tar"

// byContent returns the media type of a layer that is typed as uncompressed and begins with head. Tools that move images
// between registries write such types for compressed layers. The digest of the unpacked layer decides whether it is right.
func byContent(mediaType string, head []byte) string {
	if len(head) == headSize {
		// The name of the first file can begin like a compressed layer.
		if _, err := tar.NewReader(bytes.NewReader(head)).Next(); !errors.Is(err, tar.ErrHeader) {
			return mediaType
		}
	}
	switch compression.DetectCompression(head) {
	case compression.Gzip:
		return ocispec.MediaTypeImageLayerGzip
	case compression.Zstd:
		return ocispec.MediaTypeImageLayerZstd
	}
	return mediaType
}

// detect returns a reader of the layer in r, and its media type by its content.
func detect(mediaType string, r io.Reader) (io.Reader, string, error) {
	if !isUncompressed(mediaType) {
		return r, mediaType, nil
	}
	head := bufio.NewReaderSize(r, headSize) // larger reads bypass the buffer
	b, err := head.Peek(headSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", err
	}
	return head, byContent(mediaType, b), nil
}

// detectStored returns the media type of a layer in a content store by its content.
func detectStored(ctx context.Context, cs content.Provider, desc ocispec.Descriptor) (string, error) {
	if !isUncompressed(desc.MediaType) {
		return desc.MediaType, nil
	}
	blob, err := cs.ReaderAt(ctx, desc)
	if err != nil {
		return "", fmt.Errorf("failed to get reader from content store: %w", err)
	}
	defer blob.Close()
	head := make([]byte, min(headSize, blob.Size()))
	n, err := blob.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return byContent(desc.MediaType, head[:n]), nil
}
