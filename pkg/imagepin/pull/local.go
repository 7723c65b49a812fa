package pull

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// ChooseLocal finds a target's manifest below root as [Puller.Pull] does, but
// looks only at what is on the node. It fails with ErrNotFound where that has
// no such manifest.
func ChooseLocal(ctx context.Context, store content.Store, root ocispec.Descriptor, rt runtimeplatform.Runtime) (ocispec.Descriptor, error) {
	path, err := choosePathLocal(ctx, store, root, rt)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return path[len(path)-1], nil
}

func choosePathLocal(ctx context.Context, store content.Store, root ocispec.Descriptor, rt runtimeplatform.Runtime) ([]ocispec.Descriptor, error) {
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

// DescribeLocal is [ChooseLocal] and then [Describe]. For the node's own
// platform the entry's size counts the indexes above the manifest: a record of
// such an image keeps them.
func DescribeLocal(ctx context.Context, store content.Store, root ocispec.Descriptor, rt runtimeplatform.Runtime) (imagepin.Entry, ocispec.Descriptor, error) {
	path, err := choosePathLocal(ctx, store, root, rt)
	if err != nil {
		return imagepin.Entry{}, ocispec.Descriptor{}, err
	}
	manifest := path[len(path)-1]
	e, err := Describe(ctx, store, manifest)
	if rt.Native {
		e.Size += sizeOf(path[:len(path)-1])
	}
	return e, manifest, err
}

// Hold runs fn under a lease that holds what entries need. Where a part of that is
// gone fn is not run, and nothing fails.
func (p *Puller) Hold(ctx context.Context, entries []imagepin.Entry, fn func(context.Context) error) error {
	return p.withLease(ctx, func(ctx context.Context) error {
		err := p.Store.AddToLease(ctx, entries...)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fn(ctx)
	})
}

// Unpack unpacks an image whose layers are on the node for e's target, and runs
// record while a lease holds it. It fails with ErrNotFound where a layer is not
// here, and asks no registry. What it unpacks is kept by the image's
// configuration.
func (p *Puller) Unpack(ctx context.Context, e imagepin.Entry, record func(context.Context) error) error {
	rt, ok := p.Runtimes.ForTarget(e.Target)
	if !ok {
		return fmt.Errorf("target %s: %w", e.Target, errdefs.ErrNotFound)
	}
	return p.withLease(ctx, func(ctx context.Context) error {
		manifest := ocispec.Descriptor{Digest: e.Manifest, MediaType: e.RecordTarget.MediaType, Size: e.RecordTarget.Size}
		if e.Manifest != e.RecordTarget.Digest {
			m, err := ChooseLocal(ctx, p.Content, e.RecordTarget, rt)
			if err != nil {
				return err
			}
			manifest = m
		}
		if err := p.unpackHere(ctx, e, manifest, rt); err != nil {
			return err
		}
		if err := record(ctx); err != nil {
			return err
		}
		return p.Retained.Sync(ctx, e.Root.Digest)
	})
}

// unpackHere unpacks an image whose layers are on the node. It fails with ErrNotFound
// where a layer is not, and with ErrUnavailable where somebody else removed a
// snapshot that it was unpacked to: then it can be tried again.
func (p *Puller) unpackHere(ctx context.Context, e imagepin.Entry, manifest ocispec.Descriptor, rt runtimeplatform.Runtime) error {
	var missing atomic.Bool
	src := &source{name: e.Ref, root: manifest, session: func() (*resolve.Session, error) {
		missing.Store(true)
		return nil, fmt.Errorf("a layer is not on the node: %w", errdefs.ErrNotFound)
	}}
	dst := &destination{runtime: rt, discardLayers: p.DiscardLayers}
	err := p.transfer.Transfer(ctx, src, dst)
	if err == nil {
		err = p.committed(ctx, e)
	}
	if errdefs.IsNotFound(err) && !missing.Load() {
		return fmt.Errorf("a snapshot was removed while it was unpacked: %v: %w", err, errdefs.ErrUnavailable)
	}
	return err
}
