package pull

import (
	"context"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// ChooseLocal finds a target's manifest below root as [Puller.Pull] does, but only in the content on the node. It fails
// with ErrNotFound if that has no such manifest.
func ChooseLocal(ctx context.Context, store content.InfoReaderProvider, root ocispec.Descriptor, rt runtimeplatform.Runtime) (ocispec.Descriptor, error) {
	path, err := ChoosePathLocal(ctx, store, root, rt)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return path[len(path)-1], nil
}

// ChoosePathLocal is [ChooseLocal]. It returns the descriptors from root to the manifest.
func ChoosePathLocal(ctx context.Context, store content.InfoReaderProvider, root ocispec.Descriptor, rt runtimeplatform.Runtime) ([]ocispec.Descriptor, error) {
	here := func(ctx context.Context, d ocispec.Descriptor) error {
		_, err := store.Info(ctx, d.Digest)
		return err
	}
	c := &chooser{content: store, runtime: rt, ensure: here}
	path, err := c.choose(ctx, root)
	if err != nil {
		return nil, err
	}
	return path, here(ctx, path[len(path)-1])
}

// DescribeLocal is [ChooseLocal] followed by [Describe]. For the node's own platform the size of the entry includes the
// indexes above the manifest, because a record of such an image keeps them.
func DescribeLocal(ctx context.Context, store content.Store, root ocispec.Descriptor, rt runtimeplatform.Runtime) (imagepin.Entry, ocispec.Descriptor, error) {
	path, err := ChoosePathLocal(ctx, store, root, rt)
	if err != nil {
		return imagepin.Entry{}, ocispec.Descriptor{}, err
	}
	manifest := path[len(path)-1]
	e, err := Describe(ctx, store, manifest)
	if err == nil && rt.Native {
		err = addIndexes(ctx, store, &e, path)
	}
	return e, manifest, err
}
