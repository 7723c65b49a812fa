//go:build unix

package serve

import (
	"context"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// socketContent is containerd's content store over its socket. It opens a file only when it is read.
type socketContent struct{ content.Store }

var _ blobs.Checker = socketContent{}

// Check implements blobs.Checker.
func (c socketContent) Check(ctx context.Context, d digest.Digest, size int64) error {
	return blobs.CheckRemote(ctx, c.Store, d, size)
}
