package pull

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
)

// maxServed bounds how many blobs are remembered as served by a repository. One
// that is forgotten costs a request.
const maxServed = 2048

// vouching makes sure that a caller gets nothing from the node that its own registry would not give it.
type vouching struct {
	content content.Store
	index   Index
	proofs  decide.Proofs
	locks   *Locks
	served  served
}

// trusts reports whether a job may use the indexes, manifest and configuration
// that are on the node without having them from its registry: the node has the
// image of this very repository already, or the credential has been accepted for
// it. Otherwise a registry that only names a digest would be given what another
// registry's pull has left on the node.
func (v *vouching) trusts(j Job) bool {
	if j.Force || len(decide.OfDigest(v.index, j.Ref, j.Root.Digest)) > 0 {
		return true
	}
	return v.proofs.Accepted(j.Ref, j.Credential, j.Root.Digest)
}

// vouch makes sure that the registry of a source serves a blob that is on the
// node: by what is known, and else by fetching it. It fails as a pull does to
// which the blob cannot be given.
func (v *vouching) vouch(ctx context.Context, src *source, f transfer.Fetcher, desc ocispec.Descriptor) error {
	if src.trusted || embedded(desc) || v.served.has(src.ref, desc.Digest) || v.hasOf(ctx, src.ref, desc) {
		return nil
	}
	rc, err := f.Fetch(ctx, desc)
	if err != nil {
		return fmt.Errorf("fetch %s, which another registry has served: %w", desc.Digest, err)
	}
	defer rc.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(rc, desc.Size+1)); err != nil {
		return fmt.Errorf("fetch %s, which another registry has served: %w", desc.Digest, err)
	}
	if !v.served.has(src.ref, desc.Digest) {
		return &imagepin.Error{
			Reason: imagepin.ContentCorrupt, Class: errdefs.ErrFailedPrecondition,
			Message: fmt.Sprintf("the registry sent something else than %s", desc.Digest),
			Hint:    "Check the registry and any proxy before it.",
		}
	}
	return nil
}

// vouchImage is [vouching.vouch] for what is on the node of a manifest and its
// configuration.
func (v *vouching) vouchImage(ctx context.Context, src *source, manifest ocispec.Descriptor) error {
	if src.trusted {
		return nil
	}
	m, err := images.Manifest(ctx, v.content, manifest, platforms.All)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return malformed("manifest", manifest, err)
	}
	f, err := src.Fetcher(ctx, src.name)
	if err != nil {
		return err
	}
	for _, desc := range []ocispec.Descriptor{manifest, m.Config} {
		if err := v.vouchHere(ctx, src, f, desc); err != nil {
			return err
		}
	}
	return nil
}

// vouchHere is [vouching.vouch] for a blob that may not be on the node.
func (v *vouching) vouchHere(ctx context.Context, src *source, f transfer.Fetcher, desc ocispec.Descriptor) error {
	unlock, err := v.locks.blob(ctx, desc.Digest)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := v.content.Info(ctx, desc.Digest); errdefs.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	return v.vouch(ctx, src, f, desc)
}

// hasOf reports whether a manifest or a configuration is that of an image which
// the node has of a reference's repository.
func (v *vouching) hasOf(ctx context.Context, ref reference.Named, desc ocispec.Descriptor) bool {
	id, manifest := desc.Digest, digest.Digest("")
	if images.IsManifestType(desc.MediaType) {
		m, err := images.Manifest(ctx, v.content, desc, platforms.All)
		if err != nil {
			return false
		}
		id, manifest = m.Config.Digest, desc.Digest
	}
	return slices.ContainsFunc(v.index.ByID(id), func(e imagepin.Entry) bool {
		of, err := reference.ParseNamed(e.Ref)
		return err == nil && of.Name() == ref.Name() && (manifest == "" || e.Manifest == manifest)
	})
}

// embedded reports whether a descriptor carries its content: who serves the
// descriptor has it.
func embedded(desc ocispec.Descriptor) bool {
	return len(desc.Data) > 0 && int64(len(desc.Data)) == desc.Size && digest.FromBytes(desc.Data) == desc.Digest
}

// served is which blobs repositories have served in this process: the last
// maxServed. The zero value is ready to use.
type served struct {
	mu    sync.Mutex
	blobs map[servedBlob]struct{}
	order []servedBlob // oldest first
}

type servedBlob struct {
	repository string
	digest     digest.Digest
}

func (s *served) note(ref reference.Named, d digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := servedBlob{ref.Name(), d}
	if _, known := s.blobs[b]; known {
		return
	}
	if s.blobs == nil {
		s.blobs = make(map[servedBlob]struct{})
	}
	if len(s.order) == maxServed {
		delete(s.blobs, s.order[0])
		s.order = s.order[1:]
	}
	s.blobs[b] = struct{}{}
	s.order = append(s.order, b)
}

func (s *served) has(ref reference.Named, d digest.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.blobs[servedBlob{ref.Name(), d}]
	return ok
}

// verifier is a body that is hashed while it is read, from its beginning to its
// end.
type verifier struct {
	io.ReadCloser
	hash   digest.Verifier
	left   int64
	broken bool // not read in one go
	whole  func()
}

// verifying gives a body that calls whole once all of it has been read and is
// what desc says.
func verifying(rc io.ReadCloser, desc ocispec.Descriptor, whole func(digest.Digest)) io.ReadCloser {
	if desc.Digest.Validate() != nil {
		return rc
	}
	return &verifier{
		ReadCloser: rc, hash: desc.Digest.Verifier(), left: desc.Size, whole: func() { whole(desc.Digest) },
	}
}

func (v *verifier) Read(b []byte) (int, error) {
	n, err := v.ReadCloser.Read(b)
	if _, herr := v.hash.Write(b[:n]); herr != nil {
		v.broken = true
	}
	if v.left -= int64(n); n > 0 && v.left == 0 && !v.broken && v.hash.Verified() {
		v.whole()
	}
	return n, err
}

// Seek implements io.Seeker, by which a download is resumed.
func (v *verifier) Seek(offset int64, whence int) (int64, error) {
	s, ok := v.ReadCloser.(io.Seeker)
	if !ok {
		return 0, fmt.Errorf("seek: %w", errdefs.ErrNotImplemented)
	}
	v.broken = true
	return s.Seek(offset, whence)
}
