package pull

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// unpacker puts what an image needs in place: manifest, configuration, layers unless they are discarded, and the
// committed snapshot. All of it is under the lease of the context.
type unpacker struct {
	content  content.Store
	index    Index
	settings func() *Settings
	fetcher  *fetcher
}

func newUnpacker(c Config) *unpacker {
	return &unpacker{content: c.Content, index: c.Images, settings: c.Settings, fetcher: newFetcher(c)}
}

// chosen is the manifest for the target of a job.
type chosen struct {
	job    Job
	path   []ocispec.Descriptor // from the job's root to the manifest
	source *source
	// measured has the Key, Root, Manifest and Size of the image, where the pin of the job needs them.
	measured imagepin.Entry
}

func (c *chosen) manifest() ocispec.Descriptor { return c.path[len(c.path)-1] }

// choose finds the manifest for the target of a job. end is called where the registry makes no progress, then or later.
func (u *unpacker) choose(ctx context.Context, j Job, end context.CancelCauseFunc) (*chosen, error) {
	img := &chosen{job: j, source: u.fetcher.sourceOf(ctx, j, end)}
	if err := traced(ctx, "choose", func(ctx context.Context) (err error) {
		img.path, err = u.findPath(ctx, img)
		return err
	}); err != nil {
		return nil, err
	}
	failpoint.Reach("pull.chosen")
	if j.FirstUse == nil && (j.Pin == nil || !j.Pin.Retain) {
		return img, nil
	}
	var err error
	img.measured, err = u.measure(ctx, img)
	return img, err
}

// findPath returns the descriptors from a job's root to the manifest for its target: as [chooser.choose] does, or, for a
// platform that is not the node's, the manifest alone that was chosen for another snapshotter. The index of such an image
// is not kept, and would have to be fetched again.
func (u *unpacker) findPath(ctx context.Context, img *chosen) ([]ocispec.Descriptor, error) {
	rt := img.job.Runtime
	if !rt.Native {
		for _, e := range decide.OfDigest(u.index, img.job.Ref, img.job.Root.Digest) {
			if e.Target.Platform == rt.Target.Platform && e.RecordTarget.Digest == e.Manifest {
				return []ocispec.Descriptor{e.RecordTarget}, nil
			}
		}
	}
	c := &chooser{
		content: u.content,
		runtime: rt,
		ensure:  func(ctx context.Context, d ocispec.Descriptor) error { return u.fetcher.fetchBlob(ctx, img.source, d) },
	}
	return c.choose(ctx, img.job.Root)
}

// measure returns what the indexes and the manifest say of an image: Key, Root, Manifest and Size.
func (u *unpacker) measure(ctx context.Context, img *chosen) (imagepin.Entry, error) {
	manifest := img.manifest()
	if err := u.fetcher.fetchBlob(ctx, img.source, manifest); err != nil {
		return imagepin.Entry{}, err
	}
	m, err := images.Manifest(ctx, u.content, manifest, platforms.All)
	if err != nil {
		return imagepin.Entry{}, malformed("manifest", manifest, err)
	}
	e := imagepin.Entry{
		Key:  imagepin.Key{Ref: img.job.Ref.String(), Target: img.job.Runtime.Target},
		Root: img.job.Root, Manifest: manifest.Digest, Size: manifest.Size + m.Config.Size + sizeOf(m.Layers),
	}
	if img.job.Runtime.Native {
		e.Size += sizeOf(img.path[:len(img.path)-1]) // its records keep them
	}
	return e, nil
}

// unpack fetches and unpacks what is missing of an image, and returns the entry to record.
func (u *unpacker) unpack(ctx context.Context, img *chosen) (imagepin.Entry, error) {
	manifest, err := u.transfer(ctx, img)
	if err != nil {
		return imagepin.Entry{}, err
	}
	failpoint.Reach("pull.unpacked")
	j := img.job
	if j.Runtime.Native {
		if err := u.fetcher.keepIndexes(ctx, j.Ref.String(), img.path); err != nil {
			return imagepin.Entry{}, err
		}
	}
	e, err := Describe(ctx, u.content, manifest)
	if err != nil {
		return imagepin.Entry{}, err
	}
	e.ReadyAt = time.Now()
	e.Key = imagepin.Key{Ref: j.Ref.String(), Target: j.Runtime.Target}
	e.Root, e.Host, e.Source = j.Root, j.Host, u.sourceOf(j)
	e.RecordTarget = RecordTarget(ctx, u.content, j.Root, manifest, j.Runtime)
	if e.RecordTarget.Digest != manifest.Digest {
		e.Size += sizeOf(img.path[:len(img.path)-1])
	}
	return e, u.checkCommitted(ctx, e)
}

// transfer has containerd's transfer service fetch and unpack what is missing of an image. It returns the manifest, which
// differs from the chosen one where a Docker manifest was converted.
func (u *unpacker) transfer(ctx context.Context, img *chosen) (ocispec.Descriptor, error) {
	img.source.root = img.manifest()
	if err := u.fetcher.damage.verifyManifest(ctx, img.source, img.source.root); err != nil {
		return ocispec.Descriptor{}, err
	}
	dst := &destination{runtime: img.job.Runtime, discardLayers: u.settings().DiscardLayers}
	err := traced(ctx, "fetch", func(ctx context.Context) error {
		if err := u.fetcher.vouching.vouchImage(ctx, img.source, img.source.root); err != nil {
			return err
		}
		if err := u.transferAll(ctx, img.source, dst, img.job.Progress); err != nil {
			return err
		}
		return u.fetcher.vouching.vouchImage(ctx, img.source, img.source.root) // what came from elsewhere meanwhile
	}, tracing.WithAttribute("image.digest", img.source.root.Digest.String()))
	if len(img.path) == 1 {
		return dst.manifest, err
	}
	return img.source.root, err
}

// transferAll runs the transfer. Where it fails in a way that damaged content of the node can explain, it runs once more
// when that has been replaced.
func (u *unpacker) transferAll(ctx context.Context, src *source, dst *destination, progress transfer.ProgressFunc) error {
	service := u.settings().Transfer
	err := service.Transfer(ctx, src, dst, transfer.WithProgress(progress))
	if err == nil || ctx.Err() != nil || !mayBeDamage(err) {
		return err
	}
	replaced, verr := u.fetcher.damage.verifyAll(ctx, src, src.root)
	if errdefs.IsDataLoss(verr) {
		return verr
	}
	if verr != nil || !replaced {
		return err
	}
	return service.Transfer(ctx, src, dst, transfer.WithProgress(progress))
}

// unpackLocal unpacks an image whose layers are on the node. It fails with ErrNotFound where a layer is not, and with
// ErrUnavailable where somebody else removed a snapshot that it was unpacked to: then it can be tried again.
func (u *unpacker) unpackLocal(ctx context.Context, e imagepin.Entry, manifest ocispec.Descriptor, rt runtimeplatform.Runtime) error {
	src := localSource(e.Ref, manifest)
	err := u.settings().Transfer.Transfer(ctx, src, &destination{runtime: rt, discardLayers: u.settings().DiscardLayers})
	if err == nil {
		err = u.checkCommitted(ctx, e)
	}
	if errdefs.IsNotFound(err) && !src.opened.Load() {
		return fmt.Errorf("a snapshot was removed while it was unpacked: %v: %w", err, errdefs.ErrUnavailable)
	}
	return err
}

// checkCommitted checks that the image's top snapshot is there: the transfer service only warns when it could not unpack.
func (u *unpacker) checkCommitted(ctx context.Context, e imagepin.Entry) error {
	if e.ChainID == "" {
		return nil
	}
	for _, p := range u.settings().UnpackPlatforms {
		if p.SnapshotterKey != e.Target.Snapshotter {
			continue
		}
		info, err := p.Snapshotter.Stat(ctx, e.ChainID.String())
		if err != nil {
			return fmt.Errorf("not unpacked in %s: %w", e.Target.Snapshotter, err)
		}
		if info.Kind != snapshots.KindCommitted {
			return fmt.Errorf("snapshot %s in %s is not committed: %w", e.ChainID, e.Target.Snapshotter, errdefs.ErrUnavailable)
		}
		return nil
	}
	return fmt.Errorf("snapshotter %s: %w", e.Target.Snapshotter, errdefs.ErrNotFound)
}

// sourceOf is how a job's image came to the node. One that is made ready for one more target came as it did for the
// others.
func (u *unpacker) sourceOf(j Job) imagepin.Source {
	byDigest, err := store.RecordName(j.Ref, j.Root.Digest)
	if err != nil || j.Session != nil {
		return imagepin.SourcePull
	}
	for _, ref := range []string{j.Ref.String(), byDigest} {
		for _, o := range u.index.ByRef(ref) {
			if o.Root.Digest == j.Root.Digest {
				return o.Source
			}
		}
	}
	return imagepin.SourcePull
}

// imageID reads the image ID of a manifest that is on the node.
func (u *unpacker) imageID(ctx context.Context, manifest ocispec.Descriptor) (digest.Digest, error) {
	m, err := images.Manifest(ctx, u.content, manifest, platforms.All)
	return m.Config.Digest, err
}

// because prefers the reason for which a context was ended to the error that came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(cause, errStalled) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// sizeOf is the size of descriptors together, in bytes.
func sizeOf(descs []ocispec.Descriptor) int64 {
	var size int64
	for _, d := range descs {
		size += d.Size
	}
	return size
}
