package pull

import (
	"context"
	"fmt"
	"math"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// checkSizes checks the sizes that a manifest declares for its parts. It fails with ErrFailedPrecondition
// ([imagepin.ContentCorrupt]) if one is negative or their sum is out of range. containerd checks the size of a blob only
// if it fetches the blob.
func checkSizes(manifest ocispec.Descriptor, parts []ocispec.Descriptor) error {
	var total int64
	for _, d := range parts {
		if d.Size < 0 || d.Size > math.MaxInt64-total {
			return malformed("manifest", manifest, fmt.Errorf("the size of %s, %d bytes, is out of range", d.Digest, d.Size))
		}
		total += d.Size
	}
	return nil
}

// withCheckedSizes returns a handler that calls [checkSizes] for the children that children returns.
func withCheckedSizes(children images.HandlerFunc) images.HandlerFunc {
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		parts, err := children(ctx, desc)
		if err != nil {
			return nil, err
		}
		return parts, checkSizes(desc, parts)
	}
}

// sizeOf returns the total size of blobs, in bytes. A blob on the node counts with its real size: containerd accepts it
// without a check of the size that its descriptor declares. Other blobs count as declared.
func sizeOf(ctx context.Context, infos content.InfoProvider, blobs ...ocispec.Descriptor) (int64, error) {
	var total int64
	for _, d := range blobs {
		if d.Digest.Validate() == nil { // otherwise, no store has it
			if info, err := infos.Info(ctx, d.Digest); err == nil {
				d.Size = info.Size
			} else if !errdefs.IsNotFound(err) {
				return 0, fmt.Errorf("size of %s: %w", d.Digest, err)
			}
		}
		total = imagepin.AddSize(total, d.Size)
	}
	return total, nil
}

// addIndexes adds the size of the indexes on the path to a native manifest, which the image's records keep.
func addIndexes(ctx context.Context, infos content.InfoProvider, e *imagepin.Entry, path []ocispec.Descriptor) error {
	size, err := sizeOf(ctx, infos, path[:len(path)-1]...)
	e.Size = imagepin.AddSize(e.Size, size)
	return err
}
