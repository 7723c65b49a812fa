package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// damage finds and replaces blobs whose file on the node is not what its digest says.
type damage struct {
	content content.Store
	leases  leases.Manager
	images  Images
	garbage Garbage
	locks   *Locks
}

// verify compares a blob that the node has a record of with its digest, and fetches it again where it differs. It does
// nothing where there is no record.
func (d *damage) verify(ctx context.Context, src *source, desc ocispec.Descriptor) (replaced bool, _ error) {
	unlock, err := d.locks.blob(ctx, desc.Digest)
	if err != nil {
		return false, err
	}
	defer unlock()
	return d.verifyLocked(ctx, src, desc)
}

// verifyLocked is verify for a caller that holds the blob's lock.
func (d *damage) verifyLocked(ctx context.Context, src *source, desc ocispec.Descriptor) (replaced bool, _ error) {
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
	found := new(blobs.Damage)
	err = blobs.Verify(ctx, d.content, desc.Digest, desc.Size, nil)
	if !errors.As(err, &found) {
		return false, err
	}
	log.G(ctx).WithField("ref", src.name).WithField("digest", desc.Digest).
		Warnf("content of the node is damaged and is fetched again: its file %s", found.Problem)
	if err := d.replace(ctx, src, desc, found); err != nil {
		return false, fmt.Errorf("%w; it cannot be fetched again: %w", found, err)
	}
	return true, nil
}

// verifyManifest verifies the manifest that a pull has chosen, and its
// configuration. Both are read before it is known whether they are to be fetched.
func (d *damage) verifyManifest(ctx context.Context, src *source, manifest ocispec.Descriptor) error {
	if _, err := d.verify(ctx, src, manifest); err != nil {
		return err
	}
	here, err := blobs.Here(ctx, d.content, manifest.Digest)
	if err != nil || !here {
		return err
	}
	m, err := images.Manifest(ctx, d.content, manifest, platforms.All)
	if err != nil {
		return err
	}
	_, err = d.verify(ctx, src, m.Config)
	return err
}

// verifyAll verifies all blobs of a manifest, and reports whether one was fetched
// again. It is for an image that could not be unpacked: it reads all of it.
func (d *damage) verifyAll(ctx context.Context, src *source, manifest ocispec.Descriptor) (replaced bool, _ error) {
	if here, err := blobs.Here(ctx, d.content, manifest.Digest); err != nil || !here {
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

// mayBeDamage reports whether an error can come of content of the node that is not
// as it is recorded.
func mayBeDamage(err error) bool {
	var known *imagepin.Error
	return !errors.As(err, &known) && (corrupt(err) || errdefs.IsNotFound(err) && !atRegistry(err))
}

// replace writes a damaged blob again, from the registry. The context carries a
// lease, and the caller holds the blob's lock.
//
// Nothing is deleted before the new content is here and verified. Where the file
// is gone, it is put back under the record that there is. Where it is damaged, the
// record has to go first, and the file with it: containerd writes no content that
// it has. What only that record keeps alive is held by the lease meanwhile, and the
// new record has its labels from the start. A kill in between leaves content that
// is not there, and no lease: the next start drops the keys that need it.
func (d *damage) replace(ctx context.Context, src *source, desc ocispec.Descriptor, found *blobs.Damage) (err error) {
	info, err := d.content.Info(ctx, desc.Digest)
	if err != nil {
		return err
	}
	if err := d.holdBelow(ctx, info); err != nil {
		return err
	}
	failpoint.Reach("replace.held")
	w, err := d.ingest(ctx, src, desc)
	if err != nil {
		return err
	}
	defer w.Close()
	failpoint.Reach("replace.fetched")
	// Where the record stays, containerd must not be told the digest: it would
	// answer that it has the content.
	expected := digest.Digest("")
	if !found.Gone || desc.Digest.Algorithm() != digest.Canonical {
		expected = desc.Digest
		done := d.images.Replacing(desc.Digest)
		defer func() { err = errors.Join(err, done(context.WithoutCancel(ctx))) }()
		if err := d.content.Delete(ctx, desc.Digest); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		failpoint.Reach("replace.deleted")
		if err := d.garbage.Collect(context.WithoutCancel(ctx)); err != nil {
			log.G(ctx).WithError(err).WithField("digest", desc.Digest).Warn("cannot collect the file of damaged content")
		}
		failpoint.Reach("replace.collected")
	}
	// The caller may have gone: without its record the content is lost.
	if err := w.Commit(context.WithoutCancel(ctx), desc.Size, expected, content.WithLabels(info.Labels)); err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("write %s again: %w", desc.Digest, err)
	}
	failpoint.Reach("replace.written")
	if err := blobs.Verify(ctx, d.content, desc.Digest, desc.Size, nil); err != nil {
		return fmt.Errorf("it is damaged still, which it stays while another namespace of containerd has it: %w", err)
	}
	return nil
}

// holdBelow adds to the context's lease what only the record of a blob may keep
// alive: the content and the snapshots that its labels name.
func (d *damage) holdBelow(ctx context.Context, info content.Info) error {
	id, ok := leases.FromContext(ctx)
	if !ok {
		return fmt.Errorf("replace %s without a lease: %w", info.Digest, errdefs.ErrFailedPrecondition)
	}
	for label, value := range info.Labels {
		r := leases.Resource{ID: value}
		switch snapshotter, isSnapshot := strings.CutPrefix(label, "containerd.io/gc.ref.snapshot."); {
		case isSnapshot:
			r.Type = "snapshots/" + snapshotter
		case strings.HasPrefix(label, "containerd.io/gc.ref.content"):
			r.Type = "content"
		default:
			continue
		}
		if err := d.leases.AddResource(ctx, leases.Lease{ID: id}, r); err != nil {
			return fmt.Errorf("hold %s: %w", r.ID, err)
		}
	}
	return nil
}

// ingest fetches a blob into a writer, verified and not yet committed.
func (d *damage) ingest(ctx context.Context, src *source, desc ocispec.Descriptor) (_ content.Writer, err error) {
	f, err := src.Fetcher(ctx, src.name)
	if err != nil {
		return nil, err
	}
	body, err := f.Fetch(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	defer body.Close()
	// Without the digest, as in replace.
	w, err := d.content.Writer(ctx, content.WithRef("replace-"+desc.Digest.String()), content.WithDescriptor(ocispec.Descriptor{Size: desc.Size}))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = w.Close() // the lease's end takes what was written
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
		return nil, fmt.Errorf("fetch %s: unexpected commit digest of what the registry sent: %w", desc.Digest, errdefs.ErrFailedPrecondition)
	}
	return w, nil
}

// fromRegistry is an error that a registry's answer made, and not the node's own
// content.
type fromRegistry struct{ error }

// Unwrap gives the error.
func (e fromRegistry) Unwrap() error { return e.error }

// atRegistry reports whether an error came from a registry.
func atRegistry(err error) bool {
	var r fromRegistry
	return errors.As(err, &r)
}

// body is what a registry sends. No request is sent before the first Read, so that
// its errors come from there.
type body struct{ io.ReadCloser }

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fromRegistry{err}
	}
	return n, err
}

// Seek implements io.Seeker, by which a download is resumed.
func (b body) Seek(offset int64, whence int) (int64, error) {
	s, ok := b.ReadCloser.(io.Seeker)
	if !ok {
		return 0, fmt.Errorf("seek: %w", errdefs.ErrNotImplemented)
	}
	return s.Seek(offset, whence)
}
