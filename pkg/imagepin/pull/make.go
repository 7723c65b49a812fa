package pull

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// make puts in place what a key needs: manifest, configuration, layers unless
// they are discarded, and the committed snapshot. The context carries the
// lease that holds all of it. It returns the entry to record, and whether
// anything had to be fetched.
func (p *Puller) make(ctx context.Context, j *job) (_ imagepin.Entry, fetched bool, _ error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	src := p.sourceOf(ctx, *j, cancel)
	var path []ocispec.Descriptor
	if err := traced(ctx, "choose", func(ctx context.Context) (err error) {
		path, err = p.path(ctx, *j, src)
		return err
	}); err != nil {
		return imagepin.Entry{}, false, because(ctx, err)
	}
	j.manifest = path[len(path)-1].Digest
	failpoint.Reach("pull.chosen")
	if j.FirstUse != nil || j.Pin != nil && j.Pin.Retain {
		image, err := p.measured(ctx, *j, path, src)
		if err != nil {
			return imagepin.Entry{}, false, because(ctx, err)
		}
		if err := p.usePin(ctx, j, image); err != nil {
			return imagepin.Entry{}, false, err
		}
	}
	src.root = path[len(path)-1]
	if err := p.verifyManifest(ctx, src, src.root); err != nil {
		return imagepin.Entry{}, false, because(ctx, err)
	}
	dst := &destination{runtime: j.runtime, discardLayers: p.DiscardLayers}
	if err := traced(ctx, "fetch", func(ctx context.Context) error {
		if err := p.vouchImage(ctx, src, src.root); err != nil {
			return err
		}
		if err := p.fetchAll(ctx, src, dst, j.progress); err != nil {
			return err
		}
		return p.vouchImage(ctx, src, src.root) // what came from elsewhere meanwhile
	}, tracing.WithAttribute("image.digest", src.root.Digest.String())); err != nil {
		return imagepin.Entry{}, false, because(ctx, err)
	}
	failpoint.Reach("pull.unpacked")
	manifest := src.root
	if len(path) == 1 {
		manifest = dst.manifest
	}
	if j.runtime.Native {
		if err := p.keepIndexes(ctx, j.Ref.String(), path); err != nil {
			return imagepin.Entry{}, false, err
		}
	}
	e, err := p.describe(ctx, manifest)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	e.Key = imagepin.Key{Ref: j.Ref.String(), Target: j.runtime.Target}
	e.Root, e.Host, e.Source = j.Root, j.Host, p.source(*j)
	e.RecordTarget = RecordTarget(ctx, p.Content, j.Root, manifest, j.runtime)
	if e.RecordTarget.Digest != manifest.Digest {
		e.Size += sizeOf(path[:len(path)-1])
	}
	if err := p.committed(ctx, e); err != nil {
		return imagepin.Entry{}, false, err
	}
	return e, src.opened.Load(), nil
}

// fetchAll has the transfer service fetch and unpack what is missing. Where that
// fails in a way that damaged content of the node can explain, it is tried again once
// that has been replaced.
func (p *Puller) fetchAll(ctx context.Context, src *source, dst *destination, progress transfer.ProgressFunc) error {
	err := p.transfer.Transfer(ctx, src, dst, transfer.WithProgress(progress))
	if err == nil || ctx.Err() != nil || !mayBeDamage(err) {
		return err
	}
	again, verr := p.verifyAll(ctx, src, src.root)
	if errdefs.IsDataLoss(verr) {
		return verr
	}
	if verr != nil || !again {
		return err
	}
	return p.transfer.Transfer(ctx, src, dst, transfer.WithProgress(progress))
}

// path gives the descriptors from a job's root to the manifest for its target:
// as [chooser.choose] does, or, for a platform that is not the node's, the
// manifest alone that was chosen for another snapshotter. The index of such an
// image is not kept, and would have to be fetched again.
func (p *Puller) path(ctx context.Context, j job, src *source) ([]ocispec.Descriptor, error) {
	if !j.runtime.Native {
		for _, e := range p.ofDigest(j.Ref, j.Root.Digest) {
			if e.Target.Platform == j.runtime.Target.Platform && e.RecordTarget.Digest == e.Manifest {
				return []ocispec.Descriptor{e.RecordTarget}, nil
			}
		}
	}
	c := &chooser{
		content: p.Content,
		runtime: j.runtime,
		ensure:  func(ctx context.Context, d ocispec.Descriptor) error { return p.fetchBlob(ctx, src, d) },
	}
	return c.choose(ctx, j.Root)
}

// source is how a job's image came to the node. One that is made ready for one
// more target came as it did for the others.
func (p *Puller) source(j job) imagepin.Source {
	byDigest, err := store.RecordName(j.Ref, j.Root.Digest)
	if err != nil || j.Session != nil {
		return imagepin.SourcePull
	}
	for _, ref := range []string{j.Ref.String(), byDigest} {
		for _, o := range p.Store.ByRef(ref) {
			if o.Root.Digest == j.Root.Digest {
				return o.Source
			}
		}
	}
	return imagepin.SourcePull
}

// because prefers the reason for which a context was ended to the error that
// came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(cause, errStalled) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// describe reads what an entry says of an image from its manifest and
// configuration.
func (p *Puller) describe(ctx context.Context, manifest ocispec.Descriptor) (imagepin.Entry, error) {
	e, err := Describe(ctx, p.Content, manifest)
	e.ReadyAt = time.Now()
	return e, err
}

// Describe reads what an entry says of an image from its manifest and
// configuration: Manifest, ImageID, ChainID, Size and User. The size is without
// the indexes above the manifest. What has a configuration of another kind than
// an image's (WebAssembly, artifacts) is not unpacked and has no ChainID.
//
// It fails with ErrNotFound where content is missing and with
// ErrFailedPrecondition ([imagepin.ContentCorrupt]) where the configuration is
// not a JSON object.
func Describe(ctx context.Context, provider content.Provider, manifest ocispec.Descriptor) (imagepin.Entry, error) {
	m, err := images.Manifest(ctx, provider, manifest, platforms.All)
	if err != nil {
		return imagepin.Entry{}, err
	}
	b, err := content.ReadBlob(ctx, provider, m.Config)
	if err != nil {
		return imagepin.Entry{}, err
	}
	var config ocispec.Image
	if err := json.Unmarshal(b, &config); err != nil {
		return imagepin.Entry{}, malformed("image configuration", m.Config, err)
	}
	e := imagepin.Entry{
		Manifest: manifest.Digest,
		ImageID:  m.Config.Digest,
		Size:     manifest.Size + m.Config.Size,
		User:     config.Config.User,
	}
	for _, l := range m.Layers {
		e.Size += l.Size
	}
	if images.IsConfigType(m.Config.MediaType) && len(config.RootFS.DiffIDs) > 0 {
		// ChainID works in place.
		e.ChainID = identity.ChainID(slices.Clone(config.RootFS.DiffIDs))
	}
	return e, nil
}

// sizeOf is the size of descriptors together, in bytes.
func sizeOf(descs []ocispec.Descriptor) int64 {
	var size int64
	for _, d := range descs {
		size += d.Size
	}
	return size
}

// committed checks that the image's top snapshot is there: the transfer
// service only warns when it could not unpack.
func (p *Puller) committed(ctx context.Context, e imagepin.Entry) error {
	if e.ChainID == "" {
		return nil
	}
	for _, u := range p.UnpackPlatforms {
		if u.SnapshotterKey != e.Target.Snapshotter {
			continue
		}
		info, err := u.Snapshotter.Stat(ctx, e.ChainID.String())
		if err != nil {
			return fmt.Errorf("not unpacked in %s: %w", e.Target.Snapshotter, err)
		}
		if info.Kind != snapshots.KindCommitted {
			return fmt.Errorf("snapshot %s in %s is not committed: %w", e.ChainID, e.Target.Snapshotter, errdefs.ErrFailedPrecondition)
		}
		return nil
	}
	return fmt.Errorf("snapshotter %s: %w", e.Target.Snapshotter, errdefs.ErrNotFound)
}

// RecordTarget is what the records of an image target, see package store. That
// of a native image is its root, so that a rollback finds what stock would have
// written; unless containerd's own way of reading that index would choose
// another manifest (it does not look into a second nested index where the first
// has no match, and orders Windows builds as text). An image of another
// platform is read by containerd only where a record targets its manifest.
func RecordTarget(ctx context.Context, provider content.Provider, root, manifest ocispec.Descriptor, rt runtimeplatform.Runtime) ocispec.Descriptor {
	if !rt.Native || images.IsManifestType(root.MediaType) {
		return manifest
	}
	config, err := images.Config(ctx, provider, root, platforms.Default())
	if err != nil {
		return manifest
	}
	if chosen, err := images.Config(ctx, provider, manifest, platforms.All); err != nil || chosen.Digest != config.Digest {
		return manifest
	}
	return root
}

// measured returns what the indexes and the manifest say of an image: Key, Root, Manifest and Size. path leads to the
// manifest.
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
		Key:  imagepin.Key{Ref: j.Ref.String(), Target: j.runtime.Target},
		Root: j.Root, Manifest: manifest.Digest, Size: manifest.Size + m.Config.Size + sizeOf(m.Layers),
	}
	if j.runtime.Native {
		e.Size += sizeOf(path[:len(path)-1]) // its records keep them
	}
	return e, nil
}
