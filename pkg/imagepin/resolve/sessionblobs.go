package resolve

import (
	"context"
	"io"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// sessionBlobs opens bodies of the blobs of a session. It is the [bodyOpener] of its large bodies.
type sessionBlobs struct {
	session *Session
	limited remotes.Fetcher // waits for slots of the node's download limit
}

func (b sessionBlobs) open(ctx context.Context, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	return fetchFrom(ctx, b.limited, desc, offset)
}

// openIn uses another resolver of containerd, with the same hosts and their authorizers, because the number of
// connections is an option of the resolver.
func (b sessionBlobs) openIn(ctx context.Context, desc ocispec.Descriptor, offset, connections int64) (io.ReadCloser, error) {
	r := b.session.newResolver()
	if o, ok := r.(remotes.ResolverWithOptions); ok {
		o.SetOptions(transfer.WithMaxConcurrentDownloads(int(connections)), transfer.WithConcurrentLayerFetchBuffer(int(b.session.large.chunk)))
	}
	f, err := r.Fetcher(ctx, b.session.ref.String())
	if err != nil {
		return nil, err
	}
	return fetchFrom(ctx, f, desc, offset)
}

// fetchFrom returns the body of a blob from an offset.
func fetchFrom(ctx context.Context, f remotes.Fetcher, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	rc, err := f.Fetch(ctx, desc)
	if err != nil || offset == 0 {
		return rc, err
	}
	s, ok := rc.(io.Seeker)
	if !ok {
		_ = rc.Close()
		return nil, errdefs.ErrNotImplemented
	}
	if _, err := s.Seek(offset, io.SeekStart); err != nil {
		_ = rc.Close()
		return nil, err
	}
	return rc, nil
}
