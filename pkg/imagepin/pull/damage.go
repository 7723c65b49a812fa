package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// damage finds and replaces blobs whose file on the node does not match their digest.
type damage struct {
	content content.Store
	leases  leases.Manager
	images  *store.Store
	garbage Garbage
	locks   *Locks
}

// verify compares a blob in the content store with its digest, and fetches it again if it differs. It does nothing if
// the blob is not in the store.
func (d *damage) verify(ctx context.Context, src *source, desc ocispec.Descriptor) (replaced bool, _ error) {
	unlock, err := d.locks.of(src.registry).blob(ctx, desc.Digest)
	if err != nil {
		return false, err
	}
	defer unlock()
	return d.verifyOrReplace(ctx, src, desc)
}

// verifyOrReplace is verify for a caller that holds the mutex of the blob.
func (d *damage) verifyOrReplace(ctx context.Context, src *source, desc ocispec.Descriptor) (replaced bool, _ error) {
	info, err := d.content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if desc.Size == 0 {
		desc.Size = info.Size
	}
	if desc.Size != info.Size {
		return false, wrongSize(desc, info.Size)
	}
	found := new(blobs.Damage)
	err = blobs.Verify(ctx, d.content, desc.Digest, desc.Size, nil)
	if !errors.As(err, &found) {
		return false, err
	}
	log.G(ctx).WithField("ref", src.name).WithField("digest", desc.Digest).
		Warnf("content on the node is damaged, fetching it again: its file %s", found.Problem)
	if err := d.replace(ctx, src, desc); errors.Is(err, errRemoved) {
		return false, err
	} else if err != nil {
		return false, fmt.Errorf("%w; it cannot be fetched again: %w", found, err)
	}
	return true, nil
}

// wrongSize returns the error for a descriptor whose size is not the one that the blob was written with. The blob is not
// damaged: anyone can name a blob with a wrong size.
func wrongSize(desc ocispec.Descriptor, size int64) error {
	return &imagepin.Error{
		Reason: imagepin.ContentCorrupt, Class: errdefs.ErrFailedPrecondition,
		Message: fmt.Sprintf("a descriptor of %s has a size of %d bytes, the content has %d", desc.Digest, desc.Size, size),
		Hint:    "Push the image again, or use another one. The registry serves the content as it was pushed.",
	}
}

// verifyManifest verifies the manifest that a pull has chosen, and its configuration. Both are read before it is known
// whether they must be fetched. It also verifies layers that are not unpacked, because nothing else reads these.
func (d *damage) verifyManifest(ctx context.Context, src *source, manifest ocispec.Descriptor) error {
	if _, err := d.verify(ctx, src, manifest); err != nil {
		return err
	}
	here, err := blobs.Exists(ctx, d.content, manifest.Digest)
	if err != nil || !here {
		return err
	}
	m, err := images.Manifest(ctx, d.content, manifest, platforms.All)
	if err != nil {
		return err
	}
	if err := checkSizes(manifest, append([]ocispec.Descriptor{m.Config}, m.Layers...)); err != nil {
		return err
	}
	unread := slices.DeleteFunc(m.Layers, func(l ocispec.Descriptor) bool { return images.IsLayerType(l.MediaType) })
	for _, desc := range append([]ocispec.Descriptor{m.Config}, unread...) {
		if _, err := d.verify(ctx, src, desc); err != nil {
			return err
		}
	}
	return nil
}

// verifyAll verifies all blobs of a manifest, and reports whether it replaced one. It reads all layers, so it is only
// for an image that could not be unpacked.
func (d *damage) verifyAll(ctx context.Context, src *source, manifest ocispec.Descriptor) (replaced bool, _ error) {
	if here, err := blobs.Exists(ctx, d.content, manifest.Digest); err != nil || !here {
		return false, err
	}
	m, err := images.Manifest(ctx, d.content, manifest, platforms.All)
	if err != nil {
		return false, err
	}
	for _, desc := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		again, err := d.verify(ctx, src, desc)
		if err != nil {
			return replaced, err
		}
		replaced = replaced || again
	}
	return replaced, nil
}

// mayBeDamage reports whether damaged content on the node can be the reason for an error.
func mayBeDamage(err error) bool {
	var known *imagepin.Error
	if errors.As(err, &known) {
		return false
	}
	return IsCorrupt(err) || !AtRegistry(err) && (errdefs.IsNotFound(err) || errno.Is(err, syscall.EIO))
}

// replace writes a damaged blob again, from the registry. ctx has a lease, and the caller holds the blob's lock of the
// registry.
//
// It deletes nothing before the new content is on the node and verified. If only the file is missing, it restores the
// file under the existing record. If the file is damaged, it deletes the record and the file first, because containerd
// does not write content that it has. Meanwhile the lease holds what only that record keeps, and the new record gets
// its labels when it is created. A kill in between leaves neither content nor lease: the next start drops the keys that
// need the content.
func (d *damage) replace(ctx context.Context, src *source, desc ocispec.Descriptor) error {
	w, err := d.ingest(ctx, src, desc)
	if err != nil {
		return err
	}
	defer w.Close()
	failpoint.Reach("replace.fetched")
	unlock, err := d.locks.replace(ctx, desc.Digest)
	if err != nil {
		return err
	}
	defer unlock()
	found := new(blobs.Damage)
	if err := blobs.Verify(ctx, d.content, desc.Digest, desc.Size, nil); !errors.As(err, &found) {
		return err // another registry's pull has replaced it
	}
	return d.write(ctx, desc, w, found)
}

// write writes a damaged blob again, from a writer that has its content. The caller holds the mutex for that.
func (d *damage) write(ctx context.Context, desc ocispec.Descriptor, w content.Writer, found *blobs.Damage) (err error) {
	info, err := d.content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return errRemoved
	}
	if err != nil {
		return err
	}
	if err := d.leaseChildren(ctx, info); err != nil {
		return err
	}
	failpoint.Reach("replace.held")
	// If the record stays, containerd must not get the digest: it would answer that it has the content.
	expected := digest.Digest("")
	if !found.Missing || desc.Digest.Algorithm() != digest.Canonical {
		expected = desc.Digest
		done := d.images.BeginReplace(desc.Digest)
		defer func() { err = errors.Join(err, done(context.WithoutCancel(ctx))) }()
		if err := d.content.Delete(ctx, desc.Digest); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		failpoint.Reach("replace.deleted")
		if err := d.garbage.Collect(context.WithoutCancel(ctx)); err != nil {
			log.G(ctx).WithError(err).WithField("digest", desc.Digest).Warn("cannot collect garbage to delete the file of damaged content")
		}
		failpoint.Reach("replace.collected")
	}
	// This must not stop if the caller has gone: without its record the content is lost.
	if err := w.Commit(context.WithoutCancel(ctx), desc.Size, expected, content.WithLabels(info.Labels)); err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("write %s again: %w", desc.Digest, err)
	}
	failpoint.Reach("replace.written")
	if err := blobs.Verify(ctx, d.content, desc.Digest, desc.Size, nil); err != nil {
		return fmt.Errorf("the content is still damaged, it cannot be replaced while another containerd namespace has it: %w", err)
	}
	return nil
}

// leaseChildren adds to the context's lease what the labels of a blob's record reference: content and snapshots that
// nothing else may keep.
func (d *damage) leaseChildren(ctx context.Context, info content.Info) error {
	id, ok := leases.FromContext(ctx)
	if !ok {
		return fmt.Errorf("replace %s without a lease: %w", info.Digest, errdefs.ErrFailedPrecondition)
	}
	for label, value := range info.Labels {
		r := leases.Resource{ID: value}
		switch snapshotter, isSnapshot := strings.CutPrefix(label, upstream.SnapshotRef); {
		case isSnapshot:
			r.Type = upstream.SnapshotType + snapshotter
		case strings.HasPrefix(label, upstream.ContentRef):
			r.Type = upstream.ContentType
		default:
			continue
		}
		if err := d.leases.AddResource(ctx, leases.Lease{ID: id}, r); err != nil {
			return fmt.Errorf("add %s to lease: %w", r.ID, err)
		}
	}
	return nil
}

// ingest fetches a blob into a writer and verifies it. It does not commit the writer.
func (d *damage) ingest(ctx context.Context, src *source, desc ocispec.Descriptor) (content.Writer, error) {
	for {
		w, err := d.ingestOnce(ctx, src, desc)
		if !errors.Is(err, errWrongContent) || ctx.Err() != nil || !src.otherwise(ctx, desc.Digest) {
			return w, err
		}
	}
}

// errWrongContent is the error of a blob that does not match its digest.
var errWrongContent = fmt.Errorf("unexpected digest of the content from the registry: %w", errdefs.ErrFailedPrecondition)

func (d *damage) ingestOnce(ctx context.Context, src *source, desc ocispec.Descriptor) (_ content.Writer, err error) {
	f, err := src.Fetcher(ctx, src.name)
	if err != nil {
		return nil, err
	}
	body, err := f.Fetch(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	defer body.Close()
	// No digest, as in replace.
	w, err := d.content.Writer(ctx, content.WithRef(src.repository+"/replace-"+desc.Digest.String()), content.WithDescriptor(ocispec.Descriptor{Size: desc.Size}))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = w.Close() // the end of the lease deletes what was written
		}
	}()
	if err := w.Truncate(0); err != nil {
		return nil, err
	}
	verifier := desc.Digest.Verifier()
	n, err := io.Copy(io.MultiWriter(w, verifier), io.LimitReader(body, desc.Size+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, err)
	case n != desc.Size:
		return nil, fmt.Errorf("fetch %s: unexpected commit size %d, expected %d: %w", desc.Digest, n, desc.Size, errdefs.ErrFailedPrecondition)
	case !verifier.Verified():
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, errWrongContent)
	}
	return w, nil
}

// RegistryError marks an error of a registry, or of the connection to it, as opposed to an error of content on the node.
type RegistryError struct{ Err error }

// Error implements error.
func (e RegistryError) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e RegistryError) Unwrap() error { return e.Err }

// AtRegistry reports whether an error came from a registry, or from the connection to it.
func AtRegistry(err error) bool { return errors.As(err, new(RegistryError)) }

// GoneAtRegistry reports whether a registry has answered that it does not have a part of an image any more, and no host that
// may have it was unavailable.
func GoneAtRegistry(err error) bool {
	var e *imagepin.Error
	return errdefs.IsNotFound(err) && AtRegistry(err) && !(errors.As(err, &e) && e.Reason == imagepin.NoMatchingPlatform)
}

// body is a response of a registry. The request is sent by the first Read, so errors come from there.
type body struct {
	io.ReadCloser
	meter *meter
}

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.meter.add(n)
	if err != nil && !errors.Is(err, io.EOF) {
		err = RegistryError{err}
	}
	return n, err
}

// Seek implements io.Seeker, which is used to resume a download.
func (b body) Seek(offset int64, whence int) (int64, error) {
	s, ok := b.ReadCloser.(io.Seeker)
	if !ok {
		return 0, fmt.Errorf("seek: %w", errdefs.ErrNotImplemented)
	}
	return s.Seek(offset, whence)
}
