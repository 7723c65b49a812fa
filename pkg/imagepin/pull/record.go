package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// errRemoved means that another client removed a part of the image during the pull.
var errRemoved = fmt.Errorf("a part of the image was removed during the pull: %w", errdefs.ErrUnavailable)

// removed is an error about content that was on the node and is gone. If it was removed meanwhile, another attempt
// finds it missing and fetches it.
type removed struct{ error }

// Is makes errors.Is match errRemoved.
func (removed) Is(target error) bool { return target == errRemoved }

// Unwrap returns the error.
func (r removed) Unwrap() error { return r.error }

// asRemoved converts an error about missing content to errRemoved, unless the content is missing in the registry or in
// the image itself.
func asRemoved(err error) error {
	var known *imagepin.Error
	if errdefs.IsNotFound(err) && !AtRegistry(err) && !errors.As(err, &known) {
		return removed{err}
	}
	return err
}

// record records an image under the job's reference and under its digest, so that both find it. The lease in ctx holds
// the image from then on. It fails with errRemoved if a part of the image is gone, and with a *[decide.MovedError] if the job's
// verdict is not right any more.
func (m *Maker) record(ctx context.Context, j Job, e imagepin.Entry) (recorded imagepin.Entry, wrote bool, _ error) {
	e, err := j.keyOfDigest(e)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	err = traced(ctx, "record", func(ctx context.Context) error {
		err := m.config.Images.AddToLease(ctx, e)
		if errdefs.IsNotFound(err) {
			return errRemoved
		}
		if err != nil {
			return err
		}
		if e, wrote, err = m.put(ctx, j, e); err != nil {
			return err
		}
		failpoint.Reach("pull.recorded")
		// A pin that was made before does not retain the image yet, because it was not recorded.
		return m.config.Retained.SyncImage(ctx, e)
	})
	return e, wrote, err
}

// checkSnapshot returns ContentDamaged (ErrDataLoss) if the files of an image's snapshots are known to be damaged. An unpack uses the
// snapshots that are on the node.
func (m *Maker) checkSnapshot(ctx context.Context, e imagepin.Entry) error {
	if m.config.Snapshots == nil {
		return nil
	}
	why, err := m.config.Snapshots.SnapshotDamage(ctx, e)
	if err != nil || why == "" {
		return err
	}
	return &imagepin.Error{
		Reason: imagepin.ContentDamaged, Ref: e.Ref, Target: e.Target.String(), Message: why, Class: errdefs.ErrDataLoss,
		Hint: "The node's disk lost or changed files of the image. Run imagepin check --deep --repair.",
	}
}

// put records the keys of a job's image. It returns the entry of the job's reference, or of the digest if the job does not decide
// what the reference resolves to on the node.
func (m *Maker) put(ctx context.Context, j Job, e imagepin.Entry) (recorded imagepin.Entry, wrote bool, _ error) {
	if j.Record.restores() {
		e, err := m.putLost(ctx, *j.Record.lost, e)
		return e, err == nil, err
	}
	change, err := m.config.Images.PutChosen(ctx, j.proof(), func() ([]imagepin.Entry, error) {
		entries, err := m.entries(j, e)
		if err == nil {
			recorded = entries[len(entries)-1]
		}
		return entries, err
	})
	return recorded, change.Wrote, err
}

// proof returns the proof whose use a job records: a new one, or the one that allowed it.
func (j Job) proof() string { return store.ProofText(cmp.Or(j.Proof, j.UsedProof), j.Namespace) }

// recorded reports whether record has nothing to do for an image that is ready, and returns its entry.
func (m *Maker) recorded(ctx context.Context, j Job, e imagepin.Entry) (_ imagepin.Entry, ok bool, _ error) {
	e, err := j.keyOfDigest(e)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	entries, err := m.entries(j, e)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	e = entries[len(entries)-1]
	if j.FirstUse != nil || !m.config.Retained.Synced(e) {
		return e, false, nil
	}
	ok, err = m.config.Images.Recorded(ctx, j.proof(), entries...)
	return e, ok, err
}

// keyOfDigest returns an entry for the job's image under its digest.
func (j Job) keyOfDigest(e imagepin.Entry) (imagepin.Entry, error) {
	byDigest, err := j.byDigest()
	if err != nil {
		return e, err
	}
	e.Ref = byDigest.String()
	// An image that is ready can be on the record of another tag.
	e.Record, err = store.RecordName(j.Ref, e.RecordTarget.Digest)
	return e, err
}

// entries returns the keys of a job's image: the key of its digest, and the key of its reference if the job decides
// what the reference resolves to on the node. It fails with a *[decide.MovedError] if the job's verdict is not right any more.
func (m *Maker) entries(j Job, byDigest imagepin.Entry) ([]imagepin.Entry, error) {
	movesTag, err := m.config.Pins.Current(j.Verdict)
	if err != nil {
		return nil, err
	}
	entries, tagged := []imagepin.Entry{byDigest}, byDigest
	tagged.Ref = j.Ref.String()
	now, ok := m.config.Images.Get(tagged.Key)
	if moved := ok && now.Root.Digest != tagged.Root.Digest; tagged.Ref == byDigest.Ref || !movesTag || moved && j.Record.keep {
		return entries, nil
	}
	return append(entries, tagged), nil
}
