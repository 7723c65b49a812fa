package compare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

const (
	// maxTotal is the maximum size of all documents of a comparison, in bytes: an index can have many platforms.
	maxTotal = 32 << 20
	// readTimeout is how long a registry may take to send one.
	readTimeout = 30 * time.Second
)

// Registry resolves references. [resolve.Resolver] implements it.
type Registry interface {
	Resolve(ctx context.Context, ref reference.Named, c resolve.Credential) (resolve.Resolved, error)
	Session(ref reference.Named, c resolve.Credential) *resolve.Session
}

// Reader reads the documents of one repository: from the content on the node, and what is not there or damaged from the
// registry. It is not safe for concurrent use.
type Reader struct {
	Content    content.Store
	Registry   Registry
	Repository reference.Named
	Credential resolve.Credential

	session *resolve.Session // nil before the first request
	total   int64            // bytes of all documents
}

// Root returns the descriptor of an index or a manifest. It fails as [resolve.Resolver.Resolve] does if it is not on the
// node, and with ContentCorrupt (ErrFailedPrecondition) if it is something else.
func (r *Reader) Root(ctx context.Context, d digest.Digest) (ocispec.Descriptor, error) {
	if b, err := r.local(ctx, d); err == nil {
		return r.rootOf(d, b)
	}
	ref, err := reference.WithDigest(reference.TrimNamed(r.Repository), d)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	resolved, err := r.Registry.Resolve(ctx, ref, r.Credential)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	r.session = resolved.Session
	return resolved.Root, nil
}

// rootOf returns the descriptor of an index or a manifest from its bytes.
func (r *Reader) rootOf(d digest.Digest, b []byte) (ocispec.Descriptor, error) {
	var document struct {
		MediaType string            `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
		Config    struct {
			Digest string `json:"digest"` // the configuration of an image also has a field config
		} `json:"config"`
	}
	desc := ocispec.Descriptor{Digest: d, Size: int64(len(b))}
	err := json.Unmarshal(b, &document)
	desc.MediaType = document.MediaType
	switch {
	case err != nil:
	case images.IsIndexType(desc.MediaType), images.IsManifestType(desc.MediaType):
		return desc, nil
	case desc.MediaType != "":
		err = fmt.Errorf("it has the media type %q", desc.MediaType)
	case document.Manifests != nil:
		desc.MediaType = ocispec.MediaTypeImageIndex
		return desc, nil
	case document.Config.Digest != "":
		desc.MediaType = ocispec.MediaTypeImageManifest
		return desc, nil
	default:
		err = errors.New("it is neither an index nor a manifest")
	}
	return desc, r.malformed(desc, err)
}

// decode reads a document into v.
func (r *Reader) decode(ctx context.Context, desc ocispec.Descriptor, v any) error {
	b, err := r.read(ctx, desc)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return r.malformed(desc, err)
	}
	return nil
}

func (r *Reader) read(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if desc.Digest.Validate() != nil || desc.Size < 0 || desc.Size > blobs.MaxDocument {
		return nil, r.malformed(desc, fmt.Errorf("its descriptor has the digest %q and %d bytes", desc.Digest, desc.Size))
	}
	b, err := r.local(ctx, desc.Digest)
	if err != nil {
		b, err = r.remote(ctx, desc)
	}
	if r.total += int64(len(b)); r.total > maxTotal {
		return nil, r.malformed(desc, fmt.Errorf("the indexes, manifests and configurations have more than %d bytes: %w", maxTotal, errdefs.ErrResourceExhausted))
	}
	return b, err
}

// local reads a document from the node, and verifies it.
func (r *Reader) local(ctx context.Context, d digest.Digest) ([]byte, error) {
	return blobs.Read(ctx, r.Content, ocispec.Descriptor{Digest: d})
}

// remote reads a document from the registry, and verifies it.
func (r *Reader) remote(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if r.session == nil {
		r.session = r.Registry.Session(r.Repository, r.Credential)
	}
	timed, cancel := context.WithTimeoutCause(ctx, readTimeout, errTimeout)
	defer cancel()
	fetcher, err := r.session.Fetcher(timed)
	if err != nil {
		return nil, err
	}
	rc, err := fetcher.Fetch(timed, desc)
	if err == nil {
		defer rc.Close()
		var b []byte
		if b, err = io.ReadAll(io.LimitReader(rc, blobs.MaxDocument+1)); err == nil {
			if got := desc.Digest.Algorithm().FromBytes(b); got != desc.Digest {
				return nil, r.malformed(desc, fmt.Errorf("its content has the digest %s", got))
			}
			return b, nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(context.Cause(timed), errTimeout):
		return nil, &imagepin.Error{
			Reason: imagepin.ManifestPullTimeout, Ref: r.Repository.String(), Class: context.DeadlineExceeded, Err: errTimeout,
			Message: fmt.Sprintf("the registry did not send %s within %s", desc.Digest, readTimeout),
			Hint:    "Check the network to the registry and its mirrors.",
		}
	}
	var typed *imagepin.Error
	if errors.As(err, &typed) {
		return nil, err
	}
	return nil, &imagepin.Error{
		Reason: imagepin.CannotPullImage, Ref: r.Repository.String(), Class: errdefs.Resolve(err), Err: err,
		Message: fmt.Sprintf("cannot read %s", desc.Digest),
		Hint:    "Check that the registry still has this digest with all of its parts.",
	}
}

var errTimeout = errors.New("the registry did not answer in time")

func (r *Reader) malformed(desc ocispec.Descriptor, err error) error {
	return &imagepin.Error{
		Reason: imagepin.ContentCorrupt, Ref: r.Repository.String(), Class: errdefs.ErrFailedPrecondition, Err: err,
		Message: fmt.Sprintf("%s cannot be read", desc.Digest),
		Hint:    "Compare with the digest of an image index or an image manifest.",
	}
}
