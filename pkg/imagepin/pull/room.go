package pull

import (
	"context"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// reserve makes sure that there is room to retain what a job would make ready
// for some runtimes, until the returned function is called. What has to be
// fetched to tell is held by the lease in ctx.
func (p *Puller) reserve(ctx context.Context, j job, freed func(root digest.Digest) bool, runtimes ...runtimeplatform.Runtime) (release func(), _ error) {
	var entries []imagepin.Entry
	for _, rt := range runtimes {
		j.runtime = rt
		e, err := p.measure(ctx, j)
		if err != nil {
			return nil, complete(err, imagepin.CannotPullImageManifest, j.ref.String(), rt.Target)
		}
		entries = append(entries, e)
	}
	return p.Retainer.Reserve(freed, entries...)
}

// measure gives what can be said of an image by its indexes and its manifest:
// Key, Root, Manifest and Size.
func (p *Puller) measure(ctx context.Context, j job) (imagepin.Entry, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	src := p.sourceOf(ctx, j, cancel)
	path, err := p.path(ctx, j, src)
	if err != nil {
		return imagepin.Entry{}, because(ctx, err)
	}
	e, err := p.measured(ctx, j, path, src)
	if err != nil {
		return imagepin.Entry{}, because(ctx, err)
	}
	return e, nil
}

// measured is measure where the path to the manifest is known.
func (p *Puller) measured(ctx context.Context, j job, path []ocispec.Descriptor, src *source) (imagepin.Entry, error) {
	manifest := path[len(path)-1]
	if err := p.fetchBlob(ctx, src, manifest); err != nil {
		return imagepin.Entry{}, err
	}
	m, err := images.Manifest(ctx, p.Content, manifest, platforms.All)
	if err != nil {
		return imagepin.Entry{}, malformed("manifest", manifest, err)
	}
	e := imagepin.Entry{
		Key:  imagepin.Key{Ref: j.ref.String(), Target: j.runtime.Target},
		Root: j.root, Manifest: manifest.Digest, Size: manifest.Size + m.Config.Size + sizeOf(m.Layers),
	}
	if j.runtime.Native {
		e.Size += sizeOf(path[:len(path)-1]) // its records keep them
	}
	return e, nil
}

// releasedBy tells which roots no pin retains any more once some pins have moved
// to another.
func (p *Puller) releasedBy(moving []pin.Pin, to digest.Digest) func(root digest.Digest) bool {
	kept := map[digest.Digest]bool{to: true}
	for _, held := range p.Pins.List() {
		moves := false
		for _, m := range moving {
			moves = moves || m.ID == held.ID
		}
		if held.Retain && !moves {
			kept[held.Root.Digest] = true
		}
	}
	return func(root digest.Digest) bool { return !kept[root] }
}

// retains tells whether any of some pins does.
func retains(pins []pin.Pin) bool {
	for _, held := range pins {
		if held.Retain {
			return true
		}
	}
	return false
}
