package pull

import (
	"context"
	"fmt"
	"regexp"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
)

// wrongDigest matches the error of a content store for a blob that does not match its digest
// (plugins/content/local/writer.go of containerd). Only the text crosses a connection.
var wrongDigest = regexp.MustCompile(`unexpected commit digest [a-z0-9]+:[0-9a-f]+, expected ([a-z0-9]+:[0-9a-f]+)`)

// wrongBlob returns the digest of the blob whose content was wrong, if that is the error of a fetch.
func wrongBlob(err error) digest.Digest {
	if found := wrongDigest.FindStringSubmatch(err.Error()); found != nil {
		return digest.Digest(found[1])
	}
	return ""
}

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
		if err := u.fetcher.discard(ctx, blob); err != nil {
			return err
		}
		err = run()
	}
	return err
}

// discard deletes what was written of a blob whose content was wrong.
func (f *fetcher) discard(ctx context.Context, blob digest.Digest) error {
	unlock, err := f.locks.blob(ctx, blob)
	if err != nil {
		return err
	}
	defer unlock()
	f.discardLocked(ctx, blob)
	return nil
}

// discardLocked is discard for a caller that holds the blob's lock. It leaves what is not complete: that is from another
// pull, and was not found to be wrong. containerd would commit what is complete without fetching it.
func (f *fetcher) discardLocked(ctx context.Context, blob digest.Digest) {
	ingests, err := f.content.ListStatuses(ctx, fmt.Sprintf("ref~=%q", blob.Encoded()))
	if err != nil {
		log.G(ctx).WithError(err).WithField("digest", blob).Warn("cannot list what was written of wrong content")
		return
	}
	for _, i := range ingests {
		if i.Offset < i.Total {
			continue
		}
		if err := f.content.Abort(ctx, i.Ref); err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("ingest", i.Ref).Warn("cannot delete what was written of wrong content")
		}
	}
}
