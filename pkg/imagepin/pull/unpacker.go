package pull

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// unpacker provides what an image needs: manifest, configuration, layers unless they are discarded, and the committed
// snapshot. The lease in the context holds all of it.
type unpacker struct {
	content  content.Store
	index    *store.Store
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
	// measured has the Key, Root, Manifest and Size of the image. It is set only if a pin of the job needs them.
	measured imagepin.Entry
}

func (c *chosen) manifest() ocispec.Descriptor { return c.path[len(c.path)-1] }

// choose finds the manifest for the target of a job. end is called if the registry makes no progress, now or later.
func (u *unpacker) choose(ctx context.Context, j Job, end context.CancelCauseFunc) (_ *chosen, err error) {
	img := &chosen{job: j, source: u.fetcher.sourceOf(ctx, j, end)}
	step, ended := startStep(ctx, "choose")
	img.path, err = u.findPath(step, img)
	ended(err)
	if err != nil {
		return nil, err
	}
	failpoint.Reach("pull.chosen")
	if j.FirstUse == nil && !j.Retains() {
		return img, nil
	}
	img.measured, err = u.measure(ctx, img)
	return img, err
}

// findPath returns the descriptors from a job's root to the manifest for its target, as [chooser.choose] does. For a
// platform other than the node's own it returns only the manifest, if it is ready for another snapshotter: the index of
// such an image is not kept, and would have to be fetched again.
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

// measure returns the Key, Root, Manifest and Size of an image, from its indexes and manifest.
func (u *unpacker) measure(ctx context.Context, img *chosen) (imagepin.Entry, error) {
	manifest := img.manifest()
	if err := u.fetcher.fetchBlob(ctx, img.source, manifest); err != nil {
		return imagepin.Entry{}, err
	}
	m, err := images.Manifest(ctx, u.content, manifest, platforms.All)
	if err != nil {
		return imagepin.Entry{}, malformed("manifest", manifest, err)
	}
	parts := append([]ocispec.Descriptor{m.Config}, m.Layers...)
	if err := checkSizes(manifest, parts); err != nil {
		return imagepin.Entry{}, err
	}
	e := imagepin.Entry{
		Key:  imagepin.Key{Ref: img.job.Ref.String(), Target: img.job.Runtime.Target},
		Root: img.job.Root, Manifest: manifest.Digest,
	}
	if e.Size, err = sizeOf(ctx, u.content, append(parts, manifest)...); err == nil && img.job.Runtime.Native {
		err = addIndexes(ctx, u.content, &e, img.path)
	}
	return e, err
}

// unpack fetches and unpacks the missing parts of an image, and returns the entry to record.
func (u *unpacker) unpack(ctx context.Context, img *chosen) (imagepin.Entry, error) {
	manifest, err := u.transfer(ctx, img)
	if err != nil {
		return imagepin.Entry{}, explained(ctx, u.content, img.manifest(), err)
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
		if err := addIndexes(ctx, u.content, &e, img.path); err != nil {
			return imagepin.Entry{}, err
		}
	}
	// containerd converts a configuration without a type, but does not unpack its image.
	return e, explained(ctx, u.content, img.manifest(), u.checkCommitted(ctx, e))
}

// transfer fetches and unpacks the missing parts of an image with containerd's transfer service. It returns the
// manifest, which differs from the chosen one if a Docker manifest was converted.
func (u *unpacker) transfer(ctx context.Context, img *chosen) (ocispec.Descriptor, error) {
	img.source.root = img.manifest()
	if err := u.fetcher.damage.verifyManifest(ctx, img.source, img.source.root); err != nil {
		return ocispec.Descriptor{}, err
	}
	dst := &destination{runtime: img.job.Runtime, discardLayers: u.settings().DiscardLayers, checkSizes: true, meter: img.job.meter}
	ctx, end := startStep(ctx, "fetch", tracing.WithAttribute("image.digest", img.source.root.Digest.String()))
	vouched, err := u.fetcher.vouching.vouchPresent(ctx, img.source, img.source.root)
	if err == nil {
		err = u.transferAll(ctx, img.source, dst, img.job.Progress)
	}
	if err == nil && !vouched { // content that another pull wrote meanwhile
		err = u.fetcher.vouching.vouchImage(ctx, img.source, img.source.root)
	}
	end(err)
	if len(img.path) == 1 {
		return dst.manifest, err
	}
	return img.source.root, err
}

// transferAll runs the transfer. If the error can be a result of damaged content on the node, it replaces that content
// and runs the transfer once more. It also does so if the content is as it should be, but this process may be at fault, which
// unpacked it. The second time, layers are unpacked as containerd does.
func (u *unpacker) transferAll(ctx context.Context, src *source, dst *destination, progress transfer.ProgressFunc) error {
	run := func() error { return u.run(ctx, src, dst, transfer.WithProgress(progress)) }
	err := u.runOtherwise(ctx, src, run(), run)
	if err == nil || ctx.Err() != nil || !mayBeDamage(err) {
		return err
	}
	replaced, verr := u.fetcher.damage.verifyAll(ctx, src, src.root)
	if errdefs.IsDataLoss(verr) {
		return verr
	}
	if verr != nil || !replaced && !u.unpacksOtherwise(err) {
		return err
	}
	if !replaced {
		log.G(ctx).WithError(err).WithField("ref", src.name).Warn("cannot unpack an image whose content is not damaged, unpacking it again with containerd's decompressor")
	}
	return u.run(download.Plainly(ctx), src, dst, transfer.WithProgress(progress))
}

// unpacksOtherwise reports whether an error is about a layer that was not unpacked to what its configuration names, and that
// containerd unpacks in another way than this process.
func (u *unpacker) unpacksOtherwise(err error) bool {
	text := err.Error()
	return u.settings().Decompresses && IsCorrupt(err) && (strings.Contains(text, upstream.ExtractingLayer) || strings.Contains(text, upstream.WrongDiffID))
}

// run runs a transfer. If a snapshotter finds the directory of a snapshot that does not exist, it runs the transfer once
// more. containerd leaves such a directory if it is killed before it commits the snapshot's ID, and the next snapshot gets
// the same ID. The snapshotter removes the directory when it fails.
func (u *unpacker) run(ctx context.Context, src *source, dst *destination, opts ...transfer.Opt) error {
	settings := u.settings()
	err := runOnce(ctx, settings, src, dst, opts...)
	if err == nil || ctx.Err() != nil || !directoryExists(err) {
		return err
	}
	return runOnce(ctx, settings, src, dst, opts...)
}

func runOnce(ctx context.Context, settings *Settings, src *source, dst *destination, opts ...transfer.Opt) error {
	if settings.IsSandboxImage(src.name) {
		ctx = guestpull.WithFiles(ctx)
	}
	if download.IsPlain(ctx) || !settings.unpacksDownloads(dst.runtime.Target.Snapshotter) {
		return newTransferError(settings.Transfer.Transfer(ctx, src, dst, opts...))
	}
	from, err := src.Fetcher(ctx, src.name)
	if err != nil {
		return err
	}
	ctx, downloads := download.With(ctx, from)
	return newTransferError(downloads.End(settings.Transfer.Transfer(ctx, src, dst, opts...)))
}

// directoryExists reports whether a snapshotter could not create a directory because it exists. A layer that has a file twice
// is another error.
func directoryExists(err error) bool {
	return !AtRegistry(err) && errno.Is(err, syscall.EEXIST) && !strings.Contains(err.Error(), upstream.ExtractingLayer)
}

// unpackLocal unpacks an image whose layers are on the node. It fails with ErrNotFound if a layer is missing. It fails
// with ErrUnavailable if another client removed a snapshot during unpacking; the caller can try again.
func (u *unpacker) unpackLocal(ctx context.Context, e imagepin.Entry, manifest ocispec.Descriptor, rt runtimeplatform.Runtime) error {
	src := localSource(e.Ref, manifest)
	dst := &destination{runtime: rt, discardLayers: u.settings().DiscardLayers}
	err := u.run(ctx, src, dst)
	if err != nil && ctx.Err() == nil && u.unpacksOtherwise(err) {
		err = u.run(download.Plainly(ctx), src, dst)
	}
	if err == nil {
		err = u.checkCommitted(ctx, e)
	}
	if errdefs.IsNotFound(err) && !src.opened.Load() {
		return fmt.Errorf("a snapshot was removed while the image was unpacked: %v: %w", err, errdefs.ErrUnavailable)
	}
	return err
}

// checkCommitted checks that the image's top snapshot exists: the transfer service only logs a warning if it cannot
// unpack.
func (u *unpacker) checkCommitted(ctx context.Context, e imagepin.Entry) error {
	if e.ChainID == "" {
		return nil
	}
	sn := u.settings().platformOf(e.Target.Snapshotter).Snapshotter
	if sn == nil {
		return fmt.Errorf("snapshotter %s: %w", e.Target.Snapshotter, errdefs.ErrNotFound)
	}
	info, err := sn.Stat(ctx, e.ChainID.String())
	if err != nil {
		return fmt.Errorf("not unpacked in %s: %w", e.Target.Snapshotter, err)
	}
	if info.Kind != snapshots.KindCommitted {
		return fmt.Errorf("snapshot %s in %s is not committed: %w", e.ChainID, e.Target.Snapshotter, errdefs.ErrUnavailable)
	}
	return nil
}

// sourceOf returns the source of a job's image. A further target of an image has the same source as the targets that
// are ready.
func (u *unpacker) sourceOf(j Job) imagepin.Source {
	switch j.From {
	case FromBundle:
		return imagepin.SourceImported
	case FromNode:
		return imagepin.SourcePull
	}
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

// withCause adds the cause of a stalled pull's context to the resulting error.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(cause, errStalled) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
