package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Repaired describes what was done about a finding.
type Repaired string

// These are the possible results of a repair.
const (
	Unpacked       Repaired = "unpacked again from local content"
	Fetched        Repaired = "fetched again by digest"
	Replaced       Repaired = "its snapshots were replaced by ones that were unpacked again"
	Recorded       Repaired = "recorded again: its content and snapshot are on the node"
	RecordRepaired Repaired = "records and labels repaired"
	Dropped        Repaired = "key dropped: the registry no longer has the image"
	Unreachable    Repaired = "the registry cannot be reached"
	Kept           Repaired = "the key is kept as damaged"
	Unneeded       Repaired = "not needed: the image was removed, or its tag was moved"
	Ignored        Repaired = "ignored"
)

// Succeeded reports whether nothing of a finding is left.
func (r Repaired) Succeeded() bool {
	return r != Ignored && r != Dropped && r != Unreachable && r != Kept
}

// Repair repairs a finding, and returns how. It fetches an image by digest if local content is not sufficient. If that fails
// too, it returns the error of the fetch. It drops the key only if the registry answers that it does not have the image any
// more, and no pin means or retains it. Otherwise the key is kept as damaged, see [store.Damaged], and repaired in the
// background.
func (r *Reconciler) Repair(ctx context.Context, f health.Finding) (Repaired, error) {
	done, err := r.repairs.repair(ctx, f)
	if done == Unreachable || done == Kept {
		r.repairs.addOnce(f.Loss)
	}
	return done, err
}

// repairer repairs keys.
type repairer struct {
	config *Config
	// again queues a loss, also of a key whose repair is not over.
	again func(health.Loss)
	// snapshots is locked, by snapshotter, by the repair that removes or replaces snapshots: what it has found stays so.
	snapshots *keyed.Mutex
}

func (r repairer) repair(ctx context.Context, f health.Finding) (Repaired, error) {
	switch f.Kind {
	case health.LostKey:
		return r.repairKey(ctx, f.Loss)
	case health.DamagedBlob:
		if f.Loss.Unknown {
			return Ignored, nil // a later check may read it
		}
		if err := r.config.Puller.RepairBlob(ctx, f.Loss.Entry, f.Loss.Blob); err != nil {
			return Ignored, err // the key is ready without the blob
		}
		return Fetched, nil
	case health.WrongRecord:
		if err := r.config.Store.RepairRecords(ctx, f.Loss.Entry); err != nil {
			return Ignored, err
		}
		return RecordRepaired, nil
	}
	return Ignored, nil
}

// repairKey makes a key ready again, or keeps it as damaged, or drops it.
func (r repairer) repairKey(ctx context.Context, loss health.Loss) (Repaired, error) {
	done, err := r.repairLost(ctx, loss)
	if err == nil {
		return done, nil
	}
	if loss.Unknown || loss.MissingDirectory && errdefs.IsFailedPrecondition(err) {
		return Ignored, err // a repair may succeed after the snapshotter responds, or a container is removed
	}
	if r.gone(loss.Entry, err) {
		dropped, derr := r.drop(ctx, loss.Entry)
		if derr != nil {
			return Ignored, fmt.Errorf("%w; and cannot drop the key: %w", err, derr)
		}
		if !dropped {
			return Recorded, nil
		}
		return Dropped, err
	}
	ready, derr := r.evict(ctx, loss)
	if derr != nil {
		return Ignored, fmt.Errorf("%w; and cannot record that the key is damaged: %w", err, derr)
	}
	if ready {
		return Recorded, nil
	}
	if temporary(err) && (!loss.Unpackable || pull.AtRegistry(err)) {
		return Unreachable, err
	}
	return Kept, err
}

// gone reports whether the registry of an image has answered that it does not have it any more, no pin means or retains
// it, and no other tool has pinned it. Such an image cannot be had any more. An image from a file has no registry.
func (r repairer) gone(e imagepin.Entry, err error) bool {
	return e.Source != imagepin.SourceImported && pull.GoneAtRegistry(err) && !r.config.Store.PinnedFor(e) && (r.config.Pinned == nil || !r.config.Pinned(e.Root.Digest))
}

// evict makes a key damaged. ready is true if it is ready, for example because a pull with the credentials of a pod has
// recorded it meanwhile.
func (r repairer) evict(ctx context.Context, loss health.Loss) (ready bool, _ error) {
	e := loss.Entry
	for {
		now, seen, ok := r.config.Store.See(e.Key)
		if !ok {
			_, err := r.config.Store.MarkDamaged(ctx, e, loss.Reason)
			return false, err
		}
		if now.Root.Digest != e.Root.Digest {
			return true, nil // the tag has moved
		}
		if ready, err := r.config.Checker.Ready(ctx, now); err != nil || ready {
			return ready, err
		}
		if _, err := r.config.Store.EvictSeen(ctx, seen, loss.Reason); err != nil {
			return false, err
		}
		e = now
	}
}

// drop drops a key that is in the index, or only recorded. dropped is false if a pull has made the key ready meanwhile,
// for example with the credentials of a pod.
func (r repairer) drop(ctx context.Context, e imagepin.Entry) (dropped bool, _ error) {
	if ready, err := r.removeLost(ctx, e); err != nil || ready {
		return false, err
	}
	return true, r.config.Store.Drop(ctx, e)
}

// removeLost removes a key from the index, unless it is ready or a pull records it meanwhile.
func (r repairer) removeLost(ctx context.Context, e imagepin.Entry) (ready bool, _ error) {
	for {
		now, seen, ok := r.config.Store.See(e.Key)
		if !ok {
			return false, nil
		}
		if now.Root.Digest != e.Root.Digest {
			return true, nil // the tag has moved
		}
		if ready, err := r.config.Checker.Ready(ctx, now); err != nil || ready {
			return ready, err
		}
		if removed, err := r.removeUnused(ctx, now, seen); err != nil || removed {
			return false, err
		}
	}
}

// removeUnused removes an entry that is not outdated. It waits for pulls and uses of the image.
func (r repairer) removeUnused(ctx context.Context, e imagepin.Entry, seen store.Seen) (removed bool, _ error) {
	ref, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return false, err
	}
	byDigest, err := store.RecordName(ref, e.Root.Digest) // what pulls of the image lock
	if err != nil {
		return false, err
	}
	unlock, err := r.config.Locks.ForRemoval(ctx, byDigest)
	if err != nil {
		return false, err
	}
	defer unlock()
	return r.config.Store.RemoveSeen(ctx, seen)
}

// repairLost makes a lost key ready from local content or, if that fails, from its registry.
func (r repairer) repairLost(ctx context.Context, loss health.Loss) (Repaired, error) {
	loss, done, err := r.repairLocal(ctx, loss)
	if done != "" || err != nil && !errors.As(err, new(notUnpacked)) {
		return done, err
	}
	outcome, err := r.config.Puller.Repair(ctx, loss.Entry)
	if err != nil {
		return "", err
	}
	switch outcome {
	case pull.Unneeded:
		return Unneeded, nil
	case pull.Fetched:
		return Fetched, nil
	case pull.Unpacked:
		return Unpacked, nil
	}
	return Recorded, nil
}

// repairLocal makes a lost key ready from local content, and returns how. done is empty if that is not sufficient. The error is
// notUnpacked if the image could not be unpacked. It also returns what it has found about the loss.
func (r repairer) repairLocal(ctx context.Context, loss health.Loss) (_ health.Loss, done Repaired, _ error) {
	loss, recorded, err := r.verify(ctx, loss)
	if err != nil {
		return loss, "", err
	}
	if recorded {
		return loss, Recorded, nil
	}
	replaced := false
	if loss.MissingDirectory || loss.DamagedFiles {
		replaced, err = r.removeUnusable(ctx, loss)
		if err != nil && !errors.As(err, new(lacksLayers)) {
			return loss, "", err
		}
		loss.Unpackable = err == nil
	}
	if !loss.Unpackable {
		return loss, "", nil
	}
	unpacked, err := r.unpack(ctx, loss)
	if errdefs.IsNotFound(err) { // another tool may have removed a snapshot meanwhile: that is no reason to ask the registry
		unpacked, err = r.unpack(ctx, loss)
	}
	switch {
	case err != nil:
		return loss, "", notUnpacked{err}
	case !unpacked:
		return loss, Unneeded, nil
	case replaced:
		return loss, Replaced, nil
	}
	return loss, Unpacked, nil
}

// notUnpacked is the error of an image that could not be unpacked from local content.
type notUnpacked struct{ error }

// Unwrap returns the error.
func (e notUnpacked) Unwrap() error { return e.error }

// verify looks again at a key that was damaged before. It records the key if nothing is wrong, and otherwise returns what is.
func (r repairer) verify(ctx context.Context, loss health.Loss) (_ health.Loss, recorded bool, _ error) {
	if !loss.Unverified && loss.Entry.DamagedAt.IsZero() {
		return loss, false, nil
	}
	now, lost, err := r.config.Checker.Verify(ctx, loss.Entry)
	if err != nil {
		return loss, false, err
	}
	if lost {
		now.Record, now.Moved, now.Unknown = loss.Record, loss.Moved, loss.Unknown
		return now, false, nil
	}
	err = r.config.Maker.WithLease(ctx, []imagepin.Entry{loss.Entry}, func(ctx context.Context) (err error) {
		e := loss.Entry
		e.Durable = "" // another tool may have unpacked it again
		if recorded, err = r.config.Store.PutIf(ctx, e, cmp.Or(loss.Record, e.Record)); err == nil && recorded {
			err = r.retain(ctx, loss)
		}
		return err
	})
	if recorded && err == nil {
		r.hideIfGone(ctx, loss.Entry.Target.Snapshotter, loss.Entry.ChainID)
	}
	return loss, recorded, err
}

// removeUnusable removes the snapshots of a loss that have no directory, or damaged files, so that the image can be unpacked again.
// Where a container stands on one with damaged files, it replaces these; replaced reports that. It fails as [Replacer] does, and with
// ErrFailedPrecondition if it can do neither.
func (r repairer) removeUnusable(ctx context.Context, loss health.Loss) (replaced bool, _ error) {
	if loss.DamagedFiles { // a repair that is interrupted leaves the damaged snapshot, and the next start has to look for it
		if _, err := r.evict(ctx, loss); err != nil {
			return false, err
		}
		failpoint.Reach("exchange.hidden")
	}
	return r.repairSnapshots(ctx, loss)
}

// repairSnapshots is removeUnusable without the key.
func (r repairer) repairSnapshots(ctx context.Context, loss health.Loss) (replaced bool, _ error) {
	e := loss.Entry
	if err := r.snapshots.Lock(ctx, e.Target.Snapshotter); err != nil {
		return false, err
	}
	defer r.snapshots.Unlock(e.Target.Snapshotter)
	err := lease.With(ctx, r.config.Leases, lease.Use, func(ctx context.Context) error {
		return r.removeSnapshots(ctx, e)
	})
	if !errdefs.IsFailedPrecondition(err) || !loss.DamagedFiles || r.config.Replacer == nil {
		return false, err
	}
	lowest, err := r.config.Checker.LowestUnusable(ctx, e)
	if err != nil || lowest == "" {
		return false, err
	}
	if err := r.config.Replacer.Replace(ctx, e, lowest); err != nil {
		if errdefs.IsNotFound(err) || pull.IsCorrupt(err) && !isBlocked(err) {
			err = lacksLayers{err}
		}
		return false, err
	}
	if err := r.config.Checker.Forget(ctx, e); err != nil {
		return false, err
	}
	failpoint.Reach("exchange.forgotten")
	return true, nil
}

// removeSnapshots removes the unusable snapshots of an entry, see [health.Checker.RemoveUnusable], and queues what needs them for repair.
func (r repairer) removeSnapshots(ctx context.Context, e imagepin.Entry) error {
	evicted, err := r.config.Checker.RemoveUnusable(ctx, e)
	for _, o := range evicted {
		loss, lerr := r.withoutSnapshot(ctx, o)
		loss.Unverified = err != nil || lerr != nil
		r.again(loss)
	}
	return err
}

// lacksLayers is the error of files that cannot be replaced because a layer is missing or damaged. A pull fetches it.
type lacksLayers struct{ error }

// Unwrap returns the error.
func (e lacksLayers) Unwrap() error { return e.error }

// isBlocked reports whether files cannot be replaced because of what stands on the snapshot.
func isBlocked(err error) bool {
	var typed *imagepin.Error
	return errors.As(err, &typed) && (typed.Reason == imagepin.SnapshotInUse || typed.Reason == imagepin.SnapshotNotReplaceable)
}

// RepairSnapshots removes the snapshots of an image that are known to be damaged, so that it can be unpacked again, or replaces their
// files if containers stand on them. It fails with the error of the repair, see [Replacer].
func (r *Reconciler) RepairSnapshots(ctx context.Context, e imagepin.Entry) error {
	_, err := r.repairs.repairSnapshots(ctx, health.Loss{Entry: e, DamagedFiles: true})
	return err
}

// checkFiles compares the files of an image that is unpacked again with its layers before it is recorded, if the image, or a snapshot
// that it is unpacked on, was damaged. It removes damaged snapshots, and fails with ErrUnavailable, so that they are unpacked again.
func (r repairer) checkFiles(ctx context.Context, loss health.Loss) error {
	why, err := r.config.Checker.SnapshotDamage(ctx, loss.Entry)
	if err != nil || why == "" {
		return err
	}
	if err := r.removeSnapshots(ctx, loss.Entry); err != nil {
		return err
	}
	return fmt.Errorf("%s: the snapshots were removed: %w", why, errdefs.ErrUnavailable)
}

// unpack makes a key ready from local content. restored is false if the image was removed.
func (r repairer) unpack(ctx context.Context, loss health.Loss) (restored bool, _ error) {
	if loss.Moved { // a removal waits, because it removes the keys that it finds
		unlock, err := r.config.Locks.ForUse(ctx, loss.Entry.Ref)
		if err != nil {
			return false, err
		}
		defer unlock()
	}
	witness := cmp.Or(loss.Record, loss.Entry.Record)
	err := r.config.Maker.Unpack(ctx, loss.Entry, func(ctx context.Context, e imagepin.Entry) (err error) {
		failpoint.Reach("repair.unpacked")
		if err := r.checkFiles(ctx, loss); err != nil {
			return err
		}
		if loss.NewTarget {
			e.ReadyAt = time.Now()
		}
		restored, err = r.config.Store.PutIf(ctx, e, witness)
		failpoint.Reach("repair.recorded")
		if err == nil && restored {
			err = r.retain(ctx, loss)
		}
		return err
	})
	if restored && err == nil {
		r.hideIfGone(ctx, loss.Entry.Target.Snapshotter, loss.Entry.ChainID)
	}
	return restored, err
}

// retain retains an image of another tool that a pin retains, when the repair has recorded its first key: no lease holds it yet.
func (r repairer) retain(ctx context.Context, loss health.Loss) error {
	if loss.Record == "" {
		return nil
	}
	return r.config.Retained.Sync(ctx, loss.Entry.Root.Digest)
}

// hideIfGone hides and queues for repair the keys that need a snapshot, if it was removed before a repair recorded its key. The event
// of that removal found no key.
func (r repairer) hideIfGone(ctx context.Context, snapshotter string, chainID digest.Digest) {
	hidden, err := r.config.Store.EvictSnapshot(ctx, snapshotter, chainID.String())
	if err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Warnf("cannot check that snapshot %s is still in %s after a repair", chainID, snapshotter)
	}
	for _, e := range hidden {
		loss, err := r.withoutSnapshot(ctx, e)
		if err != nil {
			loss.Unverified = true
		}
		r.again(loss)
	}
}

// withoutSnapshot returns the loss of an entry whose snapshot is gone.
func (r repairer) withoutSnapshot(ctx context.Context, e imagepin.Entry) (health.Loss, error) {
	whole, err := r.config.Store.HasContent(ctx, e)
	return health.Loss{Entry: e, Reason: "snapshot " + e.ChainID.String() + " is gone", Unpackable: whole}, err
}
