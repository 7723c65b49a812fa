package pull

import (
	"context"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
)

// wrongBlob returns the digest of the blob whose content was wrong, if that is the error of a fetch.
func wrongBlob(err error) digest.Digest { return digest.Digest(upstream.ExpectedDigest(err.Error())) }

// otherwise reports whether there is another way to fetch a blob whose content was wrong, and uses it from now on, see
// [resolve.Session.Otherwise].
func (s *source) otherwise(ctx context.Context, blob digest.Digest) bool {
	if !s.opened.Load() {
		return false
	}
	session, err := s.session()
	if err != nil || !session.Otherwise(blob) {
		return false
	}
	log.G(ctx).WithField("ref", s.name).WithField("digest", blob).
		Warn("the registry sent content that does not match its digest, fetching it again in another way")
	return true
}

// runOtherwise runs a transfer again that failed because the content of a blob was wrong, as long as there is another way to
// fetch it. A layer that was unpacked from wrong content is unpacked again.
func (u *unpacker) runOtherwise(ctx context.Context, src *source, err error, run func() error) error {
	for err != nil && ctx.Err() == nil {
		blob := wrongBlob(err)
		if blob == "" || !src.otherwise(ctx, blob) {
			break
		}
		err = run()
	}
	return err
}
