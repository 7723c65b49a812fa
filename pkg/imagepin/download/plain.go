package download

import (
	"context"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

type plainKey struct{}

// Plainly returns a context with which [Applier] and [Decompressing] unpack as containerd does: from the content store, and with
// containerd's decompressor. It is for an image that they could not unpack, and not for use with [With].
func Plainly(ctx context.Context) context.Context { return context.WithValue(ctx, plainKey{}, true) }

// IsPlain reports whether a context is from [Plainly].
func IsPlain(ctx context.Context) bool { return ctx.Value(plainKey{}) != nil }

// plainly unpacks a layer from the content store as containerd does.
func (a *Applier) plainly(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts []diff.ApplyOpt) (_ ocispec.Descriptor, err error) {
	if desc.MediaType, err = detectStored(ctx, a.content, desc); err != nil {
		return ocispec.Descriptor{}, err
	}
	return a.archives(a.content).Apply(ctx, desc, mounts, opts...)
}
