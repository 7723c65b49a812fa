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
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// blobLock is the lock of a blob that is being written, as core/unpack names it.
func blobLock(d digest.Digest) string { return "blob://" + d.String() }

// verifyHere compares a blob that the node has a record of with its digest, and
// fetches it again where it differs. What is not here is none of its business.
func (p *Puller) verifyHere(ctx context.Context, src *source, desc ocispec.Descriptor) (replaced bool, _ error) {
	if err := p.blobs.Lock(ctx, blobLock(desc.Digest)); err != nil {
		return false, err
	}
	defer p.blobs.Unlock(blobLock(desc.Digest))
	return p.verifyLocked(ctx, src, desc)
}

// verifyLocked is verifyHere for a caller that holds the blob's lock.
func (p *Puller) verifyLocked(ctx context.Context, src *source, desc ocispec.Descriptor) (replaced bool, _ error) {
	info, err := p.Content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if desc.Size == 0 {
		desc.Size = info.Size
	}
	damage := new(blobs.Damage)
	err = blobs.Verify(ctx, p.Content, desc.Digest, desc.Size, nil)
	if !errors.As(err, &damage) {
		return false, err
	}
	log.G(ctx).WithField("ref", src.name).WithField("digest", desc.Digest).
		Warnf("content of the node is damaged and is fetched again: its file %s", damage.Problem)
	if err := p.replace(ctx, src, desc, damage); err != nil {
		return false, fmt.Errorf("%w; it cannot be fetched again: %w", damage, err)
	}
	return true, nil
}

// verifyManifest verifies the manifest that a pull has chosen, and its
// configuration. Both are read before it is known whether they are to be fetched.
func (p *Puller) verifyManifest(ctx context.Context, src *source, manifest ocispec.Descriptor) error {
	if _, err := p.verifyHere(ctx, src, manifest); err != nil {
		return err
	}
	here, err := blobs.Here(ctx, p.Content, manifest.Digest)
	if err != nil || !here {
		return err
	}
	m, err := images.Manifest(ctx, p.Content, manifest, platforms.All)
	if err != nil {
		return err
	}
	_, err = p.verifyHere(ctx, src, m.Config)
	return err
}

// verifyAll verifies all blobs of a manifest, and reports whether one was fetched
// again. It is for an image that could not be unpacked: it reads all of it.
func (p *Puller) verifyAll(ctx context.Context, src *source, manifest ocispec.Descriptor) (replaced bool, _ error) {
	if here, err := blobs.Here(ctx, p.Content, manifest.Digest); err != nil || !here {
		return false, err
	}
	m, err := images.Manifest(ctx, p.Content, manifest, platforms.All)
	if err != nil {
		return false, err
	}
	for _, desc := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		again, err := p.verifyHere(ctx, src, desc)
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
func (p *Puller) replace(ctx context.Context, src *source, desc ocispec.Descriptor, damage *blobs.Damage) (err error) {
	info, err := p.Content.Info(ctx, desc.Digest)
	if err != nil {
		return err
	}
	if err := p.holdBelow(ctx, info); err != nil {
		return err
	}
	failpoint.Reach("replace.held")
	w, err := p.ingest(ctx, src, desc)
	if err != nil {
		return err
	}
	defer w.Close()
	failpoint.Reach("replace.fetched")
	// Where the record stays, containerd must not be told the digest: it would
	// answer that it has the content.
	expected := digest.Digest("")
	if !damage.Gone || desc.Digest.Algorithm() != digest.Canonical {
		expected = desc.Digest
		done := p.Store.Replacing(desc.Digest)
		defer func() { err = errors.Join(err, done(context.WithoutCancel(ctx))) }()
		if err := p.Content.Delete(ctx, desc.Digest); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		failpoint.Reach("replace.deleted")
		if err := p.Store.Collect(context.WithoutCancel(ctx)); err != nil {
			log.G(ctx).WithError(err).WithField("digest", desc.Digest).Warn("cannot collect the file of damaged content")
		}
		failpoint.Reach("replace.collected")
	}
	// The caller may have gone: without its record the content is lost.
	if err := w.Commit(context.WithoutCancel(ctx), desc.Size, expected, content.WithLabels(info.Labels)); err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("write %s again: %w", desc.Digest, err)
	}
	failpoint.Reach("replace.written")
	if err := blobs.Verify(ctx, p.Content, desc.Digest, desc.Size, nil); err != nil {
		return fmt.Errorf("it is damaged still, which it stays while another namespace of containerd has it: %w", err)
	}
	return nil
}

// holdBelow adds to the context's lease what only the record of a blob may keep
// alive: the content and the snapshots that its labels name.
func (p *Puller) holdBelow(ctx context.Context, info content.Info) error {
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
		if err := p.Leases.AddResource(ctx, leases.Lease{ID: id}, r); err != nil {
			return fmt.Errorf("hold %s: %w", r.ID, err)
		}
	}
	return nil
}

// ingest fetches a blob into a writer, verified and not yet committed.
func (p *Puller) ingest(ctx context.Context, src *source, desc ocispec.Descriptor) (_ content.Writer, err error) {
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
	w, err := p.Content.Writer(ctx, content.WithRef("replace-"+desc.Digest.String()), content.WithDescriptor(ocispec.Descriptor{Size: desc.Size}))
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

// RepairBlob verifies one blob of an image that is on the node, and fetches it
// again where its file is damaged, by its digest and with the node's own
// credentials.
func (p *Puller) RepairBlob(ctx context.Context, e imagepin.Entry, d digest.Digest) error {
	ref, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return err
	}
	return p.withLease(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		info, err := p.Content.Info(ctx, d)
		if err != nil {
			return err
		}
		desc := ocispec.Descriptor{MediaType: mediaTypeOf(info), Digest: d, Size: info.Size}
		_, err = p.verifyHere(ctx, p.sourceOf(ctx, job{Verdict: decide.Verdict{Ref: ref}, force: true}, cancel), desc)
		if err != nil {
			err = complete(because(ctx, err), imagepin.CannotPullImage, e.Ref, e.Target)
			var typed *imagepin.Error
			if e.Target == (runtimeplatform.Target{}) && errors.As(err, &typed) {
				typed.For = "" // what a pin retains is for none
			}
			return err
		}
		return nil
	})
}

// mediaTypeOf gives a media type by which a registry is asked for a blob in the
// right place: what keeps other blobs alive is a manifest or an index.
func mediaTypeOf(info content.Info) string {
	for label := range info.Labels {
		if strings.HasPrefix(label, "containerd.io/gc.ref.content") {
			return ocispec.MediaTypeImageManifest
		}
	}
	return ocispec.MediaTypeImageLayer
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
