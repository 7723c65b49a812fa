package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// found is the result of load besides the keys that are ready.
type found struct {
	have   *health.Inventory
	lost   []imagepin.Entry
	losses []health.Loss // of lost
	// unmarked are those of lost that are compared before they are ready.
	unmarked []imagepin.Entry
	// unkeyed are the records without a key, which another tool put on the node. They include records of adopted
	// images if any image is unpacked in a snapshotter for which no key needs it. That may be an adopted image that is
	// now unpacked for one more target.
	unkeyed []images.Image
}

// load builds the index.
func (r *Reconciler) load(ctx context.Context) (*found, error) {
	f := &found{}
	unmarked, err := r.unmarked.wanted()
	if err != nil {
		return nil, err
	}
	loaded, err := r.config.Store.Load(ctx, func(ctx context.Context) (_ func(imagepin.Entry) bool, err error) {
		if f.have, err = r.config.Checker.Inventory(ctx); err != nil {
			return nil, err
		}
		return func(e imagepin.Entry) bool {
			_, lost := r.config.Checker.Lost(e, f.have)
			return !lost && !unmarked(e)
		}, nil
	})
	if err != nil {
		return nil, err
	}
	r.forgetGone(loaded.Records)
	f.lost = loaded.Lost
	for _, e := range f.lost {
		loss, lost := r.config.Checker.Lost(e, f.have)
		if !lost && unmarked(e) {
			r.config.Store.NoteWaiting(e, unmarkedReason)
			f.unmarked = append(f.unmarked, e)
			continue
		}
		if !lost { // a part of it has come back since it was looked at
			loss = health.Loss{Entry: e, Reason: "it was not ready before", Unverified: true}
		}
		r.config.Store.NoteDamaged(e, loss.Reason)
		if e.Durable != "" { // a pull or a repair unpacks it again, and that may be lost when the power is cut
			if _, err := r.config.Store.MarkDamaged(ctx, e, loss.Reason); err != nil {
				logOf(ctx, e).WithError(err).Warn("cannot record that a key is damaged")
			}
		}
		f.losses = append(f.losses, loss)
	}
	for _, e := range loaded.Superseded {
		f.losses = append(f.losses, health.Loss{Entry: e, Reason: "no runtime handler has its target, and the image is ready for another one", Superseded: true})
	}
	ofLost := store.NeededBy(slices.Concat(f.lost, loaded.Superseded))
	f.losses = append(f.losses, r.moves(ctx, loaded.Former, f.have)...)
	claimable := slices.ContainsFunc(f.have.Unpacked(), func(u store.Unpacked) bool {
		return f.have.Knows(u.Snapshotter) && r.config.Store.Unclaimed(u)
	})
	firstOfBoot := !r.leftovers.isGone()
	f.unkeyed = slices.DeleteFunc(loaded.Records, func(img images.Image) bool {
		// What an apply or a pull had unpacked for one more target when the power was cut is not adopted.
		claimed := claimable && r.config.Store.Adopted(img.Name) && !(firstOfBoot && r.config.Store.IsDurable(img.Name))
		return ofLost(img) || r.config.Store.Accounted(img) && !claimed
	})
	return f, nil
}

// forgetGone forgets the records that do not exist any more. Their events may have been missed between two runs.
func (r *Reconciler) forgetGone(all []images.Image) {
	exists := make(map[string]bool, len(all))
	for _, img := range all {
		exists[img.Name] = true
	}
	maps.DeleteFunc(r.adopter.awaitingUnpack, func(name string, _ []store.Snapshot) bool { return !exists[name] })
	maps.DeleteFunc(r.unkeyed.ids, func(name string, _ digest.Digest) bool { return !exists[name] })
}

// snapshotGone hides and queues for repair the keys that need a snapshot, if it was removed.
func (r *Reconciler) snapshotGone(ctx context.Context, s store.Snapshot) error {
	var hidden []imagepin.Entry
	err := r.unanswered.ask(ctx, s, func(ctx context.Context) (err error) {
		hidden, err = r.config.Store.EvictSnapshot(ctx, s.Snapshotter, s.ChainID.String())
		return err
	})
	if errors.Is(err, errSilent) {
		return nil // it is asked again
	}
	for _, e := range hidden {
		loss, herr := r.repairs.withoutSnapshot(ctx, e)
		if herr != nil && err == nil {
			err = herr
		}
		r.repairs.add(ctx, loss)
	}
	return err
}

// blobGone hides and queues for repair the keys that need a blob, if it was deleted.
func (r *Reconciler) blobGone(ctx context.Context, d digest.Digest) error {
	hidden, err := r.config.Store.EvictBlob(ctx, d)
	for _, e := range hidden {
		r.repairs.add(ctx, health.Loss{Entry: e, Reason: "content " + d.String() + " is gone"})
	}
	return err
}
