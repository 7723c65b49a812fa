package pull

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
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
func (m *Maker) record(ctx context.Context, j Job, e imagepin.Entry) (recorded imagepin.Entry, wrote bool, _ error) {
	entries, err := m.entries(j, e)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	e = entries[len(entries)-1]
	err = traced(ctx, "record", func(ctx context.Context) error {
		err := m.c.Images.AddToLease(ctx, e)
		if errdefs.IsNotFound(err) {
			return errRemoved
		}
		if err != nil {
			return err
		}
		change, err := m.c.Images.Put(ctx, j.Proof, entries...)
		if err != nil {
			return err
		}
		wrote = change.Wrote
		failpoint.Reach("pull.recorded")
		return m.c.Retained.Sync(ctx, e.Root.Digest)
	})
	return e, wrote, err
}

// recorded reports whether record has nothing to do for an image that is ready,
// and gives its entry.
func (m *Maker) recorded(j Job, e imagepin.Entry) (imagepin.Entry, bool) {
	entries, err := m.entries(j, e)
	if err != nil || j.FirstUse != nil || !m.c.Images.Recorded(j.Proof, entries...) {
		return imagepin.Entry{}, false
	}
	e = entries[len(entries)-1]
	return e, m.c.Retained.Synced(e.Root.Digest)
}

// entries are the keys of a job's image: that of its digest, and that of its
// reference where the job decides what that means on the node.
func (m *Maker) entries(j Job, e imagepin.Entry) ([]imagepin.Entry, error) {
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
	if ref := j.Ref.String(); ref != e.Ref && m.c.Pins.MovesTag(j.Verdict) {
		e.Ref = ref
		entries = append(entries, e)
	}
	return entries, nil
}
