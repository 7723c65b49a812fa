package pull

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// errRemoved says that something else removed what a key was to be made of.
var errRemoved = fmt.Errorf("a part of the image was removed while it was made ready: %w", errdefs.ErrUnavailable)

// removed is an error of content that was on the node and is not any more: where it
// was removed meanwhile, another try finds it missing and fetches it.
type removed struct{ error }

// Is implements the interface that errors.Is looks for.
func (removed) Is(target error) bool { return target == errRemoved }

// Unwrap gives the error.
func (r removed) Unwrap() error { return r.error }

// asRemoved makes an error of missing content errRemoved, unless a registry or the
// image itself lacks it.
func asRemoved(err error) error {
	var known *imagepin.Error
	if errdefs.IsNotFound(err) && !atRegistry(err) && !errors.As(err, &known) {
		return removed{err}
	}
	return err
}

// record writes an image that is in place under the job's reference and under
// its digest, so that it is found by either. The context carries a lease, which
// holds the image from then on. It fails with errRemoved where a part of it is
// not there any more.
func (p *Puller) record(ctx context.Context, j job, e imagepin.Entry) (recorded imagepin.Entry, change store.Change, _ error) {
	entries, err := p.entries(j, e)
	if err != nil {
		return imagepin.Entry{}, change, err
	}
	e = entries[len(entries)-1]
	err = traced(ctx, "record", func(ctx context.Context) error {
		err := p.Store.AddToLease(ctx, e)
		if errdefs.IsNotFound(err) {
			return errRemoved
		}
		if err != nil {
			return err
		}
		if change, err = p.Store.Put(ctx, j.Proof, entries...); err != nil {
			return err
		}
		failpoint.Reach("pull.recorded")
		return p.Retained.Sync(ctx, e.Root.Digest)
	})
	return e, change, err
}

// recorded reports whether record has nothing to do for an image that is ready,
// and gives its entry.
func (p *Puller) recorded(j job, e imagepin.Entry) (imagepin.Entry, bool) {
	entries, err := p.entries(j, e)
	if err != nil || j.FirstUse != nil || !p.Store.Recorded(j.Proof, entries...) {
		return imagepin.Entry{}, false
	}
	e = entries[len(entries)-1]
	return e, p.Retained.Synced(e.Root.Digest)
}

// entries are the keys of a job's image: that of its digest, and that of its
// reference where the job decides what that means on the node.
func (p *Puller) entries(j job, e imagepin.Entry) ([]imagepin.Entry, error) {
	byDigest, err := j.byDigest()
	if err != nil {
		return nil, err
	}
	e.Ref = byDigest.String()
	// What was found ready can be carried by the record of another tag.
	if e.Record, err = store.RecordName(j.Ref, e.RecordTarget.Digest); err != nil {
		return nil, err
	}
	entries := []imagepin.Entry{e}
	if ref := j.Ref.String(); ref != e.Ref && p.Decider.MovesTag(j.Verdict) {
		e.Ref = ref
		entries = append(entries, e)
	}
	return entries, nil
}

// ofDigest returns what the node has of one digest of a reference.
func (p *Puller) ofDigest(ref reference.Named, root digest.Digest) []imagepin.Entry {
	return decide.OfDigest(p.Store, ref, root)
}
