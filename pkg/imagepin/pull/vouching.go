package pull

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/utils/lru"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// maxServed is the maximum number of blobs that are remembered as served by a repository. A forgotten blob costs one
// request.
const maxServed = 2048

// vouching ensures that a caller gets only content that its own registry would serve, even if the content is on the
// node.
type vouching struct {
	content content.Store
	index   *store.Store
	proofs  decide.Proofs
	served  *lru.Cache // of servedBlob, the last maxServed
}

// trusts reports whether a job may use the indexes, manifest and configuration on the node without fetching them from
// its registry. It may if the node has the image from the same repository, or if the credential was accepted for it.
// Without this check, a registry that only names a digest could get content that the node pulled from another registry.
func (v *vouching) trusts(j Job) bool {
	if j.Record.restores() || len(decide.OfDigest(v.index, j.Ref, j.Root.Digest)) > 0 {
		return true
	}
	_, ok := v.proofs.Accepted(j.Ref, j.Credential, j.Root.Digest)
	return ok
}

// known reports whether it is known that the registry of a source serves a blob.
func (v *vouching) known(ctx context.Context, src *source, desc ocispec.Descriptor) bool {
	return src.trusted || embedded(desc) || v.hasServed(src.ref, desc.Digest) || v.hasOf(ctx, src.ref, desc)
}

// vouch ensures that the registry of a source serves a blob that is on the node, for which this is not known yet. It
// fetches the blob, up to its size. It fails like a pull from a registry without the blob. The result does not depend on
// the node's content. The caller must not hold the blob's lock: a registry can send the blob as slowly as it wants.
func (v *vouching) vouch(ctx context.Context, src *source, f transfer.Fetcher, desc ocispec.Descriptor) error {
	for {
		if err := v.fetch(ctx, f, desc); err != nil || v.hasServed(src.ref, desc.Digest) {
			return err
		}
		if !src.otherwise(ctx, desc.Digest) {
			break
		}
	}
	return &imagepin.Error{
		Reason: imagepin.ContentCorrupt, Class: errdefs.ErrFailedPrecondition,
		Message: fmt.Sprintf("the registry sent content that does not match %s", desc.Digest),
		Hint:    "Check the registry and any proxy in front of it.",
	}
}

func (v *vouching) fetch(ctx context.Context, f transfer.Fetcher, desc ocispec.Descriptor) error {
	rc, err := f.Fetch(ctx, desc)
	if err == nil {
		defer rc.Close()
		_, err = io.Copy(io.Discard, io.LimitReader(rc, desc.Size+1))
	}
	if err != nil {
		return fmt.Errorf("fetch %s, which is on the node from another registry: %w", desc.Digest, err)
	}
	return nil
}

// vouchPresent is [vouching.vouchImage] for the parts that are on the node. all reports whether they are all parts.
func (v *vouching) vouchPresent(ctx context.Context, src *source, manifest ocispec.Descriptor) (all bool, _ error) {
	err := v.vouchImage(ctx, src, manifest)
	if errdefs.IsNotFound(err) && !AtRegistry(err) {
		return false, nil
	}
	return err == nil, err
}

// vouchImage calls [vouching.vouch] for a manifest and its configuration, unless it is known that the registry serves them. If
// the node has pulled the same manifest from another repository of the registry, the manifest is enough: a registry refuses a
// manifest whose blobs its repository does not have (MANIFEST_BLOB_UNKNOWN in the OCI distribution specification). vouchImage
// fails with ErrNotFound if a part is not on the node: another pull may be replacing it.
func (v *vouching) vouchImage(ctx context.Context, src *source, manifest ocispec.Descriptor) error {
	if src.trusted {
		return nil
	}
	m, err := images.Manifest(ctx, v.content, manifest, platforms.All)
	if errdefs.IsNotFound(err) {
		return err
	}
	if err != nil {
		return malformed("manifest", manifest, err)
	}
	f, err := src.Fetcher(ctx, src.name)
	if err != nil {
		return err
	}
	for _, desc := range []ocispec.Descriptor{manifest, m.Config} {
		if _, err := v.content.Info(ctx, desc.Digest); err != nil {
			return err
		}
		if v.known(ctx, src, desc) || desc.Digest == m.Config.Digest && v.index.InRegistry(m.Config.Digest, manifest.Digest, src.registry) {
			continue
		}
		if err := v.vouch(ctx, src, f, desc); err != nil {
			return err
		}
	}
	return nil
}

// hasOf reports whether the node has an image with this manifest or configuration from the reference's repository.
func (v *vouching) hasOf(ctx context.Context, ref reference.Named, desc ocispec.Descriptor) bool {
	id, manifest := desc.Digest, digest.Digest("")
	if images.IsManifestType(desc.MediaType) {
		m, err := images.Manifest(ctx, v.content, desc, platforms.All)
		if err != nil {
			return false
		}
		id, manifest = m.Config.Digest, desc.Digest
	}
	return v.index.InRepository(id, manifest, ref.Name())
}

// embedded reports whether a descriptor contains its content. A registry that serves the descriptor then has the
// content.
func embedded(desc ocispec.Descriptor) bool {
	return len(desc.Data) > 0 && int64(len(desc.Data)) == desc.Size && digest.FromBytes(desc.Data) == desc.Digest
}

// servedBlob is a blob that a repository has served in this process.
type servedBlob struct {
	repository string
	digest     digest.Digest
}

// hasServed reports whether a repository has served a blob.
func (v *vouching) hasServed(ref reference.Named, d digest.Digest) bool {
	_, ok := v.served.Get(servedBlob{ref.Name(), d})
	return ok
}

// verifier hashes a body while it is read from beginning to end.
type verifier struct {
	io.ReadCloser
	hash     digest.Verifier
	left     int64
	broken   bool // not read in one pass
	verified func()
}

// verifying returns a body that calls verified when it has been read completely and matches desc.
func verifying(rc io.ReadCloser, desc ocispec.Descriptor, verified func(digest.Digest)) io.ReadCloser {
	if desc.Digest.Validate() != nil {
		return rc
	}
	return &verifier{
		ReadCloser: rc, hash: desc.Digest.Verifier(), left: desc.Size, verified: func() { verified(desc.Digest) },
	}
}

func (v *verifier) Read(b []byte) (int, error) {
	n, err := v.ReadCloser.Read(b)
	if _, herr := v.hash.Write(b[:n]); herr != nil {
		v.broken = true
	}
	if v.left -= int64(n); n > 0 && v.left == 0 && !v.broken && v.hash.Verified() {
		v.verified()
	}
	return n, err
}

// Seek implements io.Seeker, which is used to resume a download.
func (v *verifier) Seek(offset int64, whence int) (int64, error) {
	s, ok := v.ReadCloser.(io.Seeker)
	if !ok {
		return 0, fmt.Errorf("seek: %w", errdefs.ErrNotImplemented)
	}
	v.broken = true
	return s.Seek(offset, whence)
}
