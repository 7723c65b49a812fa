package pull

import (
	"context"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// retainsAnew tells whether the answer to a question would become a pin that
// retains, while what is retained is limited: whether there is room is decided
// before the pin is made.
func (p *Puller) retainsAnew(q question) bool {
	if _, ok := q.ref.(reference.Digested); ok {
		return false
	}
	return q.decision.Scope != "" && q.decision.Retain && p.pinFor(q) == nil && p.Retainer.Limited()
}

// pullRetained is a pull whose reference would be pinned and retained. The
// manifest, which tells the size, is fetched before the pin is made: a lease of
// its own holds it until the pull has recorded it.
func (p *Puller) pullRetained(ctx context.Context, r Request, q question) (e imagepin.Entry, _ error) {
	release := func() {}
	defer func() { release() }()
	q.room = func(ctx context.Context, v Verdict) error {
		if err := verify(ctx, p.Verifiers, q.ref.String(), v.Root); err != nil {
			return complete(err, imagepin.ImageVerificationFailed, q.ref.String(), r.Runtime.Target)
		}
		reserved, err := p.reserve(ctx, v.job(q.ref, r), nil, r.Runtime)
		if err == nil {
			release = reserved
		}
		return err
	}
	err := withLease(ctx, p.Leases, func(ctx context.Context) (err error) {
		e, err = p.decideAndRun(ctx, r, q)
		return err
	})
	return e, err
}

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
	ensure := func(ctx context.Context, d ocispec.Descriptor) error { return p.fetchBlob(ctx, src, d) }
	path, err := (&chooser{content: p.Content, runtime: j.runtime, ensure: ensure}).choose(ctx, j.root)
	if err != nil {
		return imagepin.Entry{}, because(ctx, err)
	}
	manifest := path[len(path)-1]
	if err := ensure(ctx, manifest); err != nil {
		return imagepin.Entry{}, because(ctx, err)
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
