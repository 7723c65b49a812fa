package reconcile

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

// Repaired describes what was done about a finding.
type Repaired string

// These are the possible results of a repair.
const (
	Unpacked       Repaired = "unpacked again from local content"
	Fetched        Repaired = "fetched again by digest"
	Recorded       Repaired = "recorded again: its content and snapshot are on the node"
	RecordRepaired Repaired = "records and labels repaired"
	Dropped        Repaired = "key dropped"
	Unwanted       Repaired = "not needed: the image was removed"
	Ignored        Repaired = "ignored"
)

// Repair repairs a finding, and returns how. It fetches an image by digest if local content is not sufficient. If that
// fails too, it drops the key, so that the image is not reported as present, and returns the error of the fetch.
func (r *Reconciler) Repair(ctx context.Context, f health.Finding) (Repaired, error) {
	switch f.Kind {
	case health.LostKey:
		return r.repairKey(ctx, f.Loss)
	case health.DamagedBlob:
		if err := r.config.Maker.RepairBlob(ctx, f.Loss.Entry, f.Loss.Blob); err != nil {
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

// repairKey makes a key ready again, or drops it.
func (r *Reconciler) repairKey(ctx context.Context, loss health.Loss) (Repaired, error) {
	done, err := r.repairLost(ctx, loss)
	if err == nil {
		return done, nil
	}
	if loss.Unknown || loss.MissingDirectory && errdefs.IsFailedPrecondition(err) {
		return Ignored, err // a repair may succeed after the snapshotter responds, or a container is removed
	}
	if derr := r.drop(ctx, loss.Entry); derr != nil {
		return Ignored, fmt.Errorf("%w; and cannot drop the key: %w", err, derr)
	}
	return Dropped, err
}

// drop drops a key that is in the index, or only recorded.
func (r *Reconciler) drop(ctx context.Context, e imagepin.Entry) error {
	if _, err := r.config.Store.Remove(ctx, e.Key); err != nil {
		return err
	}
	return r.config.Store.Drop(ctx, e)
}

// repairLost makes a lost key ready from local content or, if that fails, from its registry.
func (r *Reconciler) repairLost(ctx context.Context, loss health.Loss) (Repaired, error) {
	if loss.MissingDirectory {
		err := lease.With(ctx, r.config.Leases, lease.Use, func(ctx context.Context) error { return r.config.Checker.RemoveWithoutDirectory(ctx, loss.Entry) })
		if err != nil {
			return "", err
		}
		loss.Unpackable = true
	}
	if loss.Unpackable {
		if unpacked, err := r.unpack(ctx, loss); err == nil {
			if !unpacked {
				return Unwanted, nil
			}
			return Unpacked, nil
		}
	}
	outcome, err := r.config.Puller.Repair(ctx, loss.Entry)
	if err != nil {
		return "", err
	}
	switch outcome {
	case pull.Fetched:
		return Fetched, nil
	case pull.Unpacked:
		return Unpacked, nil
	}
	return Recorded, nil
}
