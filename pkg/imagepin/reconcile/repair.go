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

// Repaired is what was done about a finding, in words.
type Repaired string

// What can be done about a finding.
const (
	Unpacked  Repaired = "unpacked again from what is here"
	Fetched   Repaired = "fetched again by its digest"
	Recorded  Repaired = "recorded again: what it needs is here"
	Restored  Repaired = "records and labels restored"
	Dropped   Repaired = "key dropped"
	Unwanted  Repaired = "nothing: it was removed meanwhile"
	Ignored Repaired = "left alone"
)

// Repair repairs a finding, and returns how. What cannot be made ready from what is on the node is fetched by its digest.
// Where that fails too, the key is dropped, so that the image is not reported as present, and the error says why.
func (r *Reconciler) Repair(ctx context.Context, f health.Finding) (Repaired, error) {
	switch f.Kind {
	case health.LostKey:
		return r.repairKey(ctx, f.Loss)
	case health.DamagedBlob:
		if err := r.Maker.RepairBlob(ctx, f.Loss.Entry, f.Loss.Blob); err != nil {
			return Ignored, err // the key runs without it
		}
		return Fetched, nil
	case health.WrongRecord:
		if err := r.Store.RepairRecords(ctx, f.Loss.Entry); err != nil {
			return Ignored, err
		}
		return Restored, nil
	}
	return Ignored, nil
}

// repairKey makes a key ready again, or drops it.
func (r *Reconciler) repairKey(ctx context.Context, loss health.Loss) (Repaired, error) {
	done, err := r.repairLost(ctx, loss)
	if err == nil {
		return done, nil
	}
	if loss.Wait || loss.Hollow && errdefs.IsFailedPrecondition(err) {
		return Ignored, err // it may be there when its snapshotter answers, or a container goes
	}
	if derr := r.drop(ctx, loss.Entry); derr != nil {
		return Ignored, fmt.Errorf("%w; and cannot drop the key: %w", err, derr)
	}
	return Dropped, err
}

// drop drops a key, whether it is in the index or only recorded.
func (r *Reconciler) drop(ctx context.Context, e imagepin.Entry) error {
	if _, err := r.Store.Remove(ctx, e.Key); err != nil {
		return err
	}
	return r.Store.Drop(ctx, e)
}

// remake makes a lost key ready: from what is on the node, and else from its registry.
func (r *Reconciler) repairLost(ctx context.Context, loss health.Loss) (Repaired, error) {
	if loss.Hollow {
		err := lease.With(ctx, r.Leases, lease.Use, func(ctx context.Context) error { return r.Checker.RemoveHollow(ctx, loss.Entry) })
		if err != nil {
			return "", err
		}
		loss.Unpackable = true
	}
	if loss.Unpackable {
		if restored, err := r.unpack(ctx, loss); err == nil {
			if !restored {
				return Unwanted, nil
			}
			return Unpacked, nil
		}
	}
	outcome, err := r.Puller.Repair(ctx, loss.Entry)
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
