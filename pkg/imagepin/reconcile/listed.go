package reconcile

import (
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/health"
)

// Listed is the result of a list of all images, which builds the index.
type Listed struct {
	// At is when the list was finished, and Took how long it took.
	At   time.Time
	Took time.Duration
	// Lost is the number of keys that were recorded but not ready.
	Lost int
}

// LastListed returns the result of the last list of all images; ok is false before the first is finished.
func (r *Reconciler) LastListed() (_ Listed, ok bool) {
	if l := r.last.Load(); l != nil {
		return *l, true
	}
	return Listed{}, false
}

// PendingRepairs returns the number of keys that were recorded but are not ready, and will be repaired or dropped.
func (r *Reconciler) PendingRepairs() int { return r.repairs.pending() }

// RepairDamaged repairs the damaged keys in the background for which no repair is queued: a call has found the damage, and could
// not repair it.
func (r *Reconciler) RepairDamaged() {
	for _, d := range r.config.Store.Damaged() {
		if _, ok := r.config.Runtimes().ForTarget(d.Target); ok && !d.Waiting {
			r.repairs.addOnce(health.Loss{Entry: d.Entry, Reason: d.Reason, Unverified: true})
		}
	}
}

// Dropped returns the number of keys that were dropped in the background since the start, because their registries no longer
// have the image.
func (r *Reconciler) Dropped() int64 { return r.repairs.dropped.Load() }
