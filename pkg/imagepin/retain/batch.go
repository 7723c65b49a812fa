package retain

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

// batch is how many images are added to leases in one transaction.
const batch = 100

// holdBatches retains the images of digests in as few transactions as possible. It leaves out a batch with an image that it
// cannot retain: [Retainer.hold] then retains the others, and reports that one.
func (r *Retainer) holdBatches(ctx context.Context, roots []digest.Digest) {
	var all []imagepin.Entry
	for _, root := range roots {
		if !r.config.Pins.Retains(root) {
			continue
		}
		for _, e := range r.config.Images.ByRoot(root) {
			if !r.Holds(e) {
				all = append(all, e)
			}
		}
	}
	if len(all) < 2 {
		return
	}
	for entries := range slices.Chunk(all, batch) {
		_ = r.holdBatch(ctx, entries)
	}
}

func (r *Retainer) holdBatch(ctx context.Context, entries []imagepin.Entry) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	return r.leased(ctx, func(ctx context.Context) error {
		if err := r.config.Images.AddReadyToLease(ctx, entries...); err != nil {
			return err
		}
		return r.retain(ctx, entries...)
	})
}

// leased calls fn with a context that has a lease: that of the caller, or one that ends with fn.
func (r *Retainer) leased(ctx context.Context, fn func(context.Context) error) error {
	if _, ok := leases.FromContext(ctx); ok {
		return fn(ctx)
	}
	return lease.With(ctx, r.config.Leases, lease.Pull, fn)
}

// retain adds the images of entries to their leases in one transaction, without those that no pin retains any more. A lease of
// the caller must hold the content and the snapshots. retain returns [imagepin.RetainLimitReached] (ErrResourceExhausted) if
// there is no room, ErrNotFound if content is gone, and errUnreadable.
func (r *Retainer) retain(ctx context.Context, entries ...imagepin.Entry) error {
	resources := make([][]leases.Resource, len(entries))
	for n, e := range entries {
		var err error
		if resources[n], err = r.resources(ctx, e); err != nil {
			return err
		}
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	wanted := make([]bool, len(entries)) // not if the pin was removed
	for n, e := range entries {
		wanted[n] = r.config.Pins.Retains(e.Root.Digest)
	}
	if !slices.Contains(wanted, true) {
		return nil
	}
	var created []string
	added := make(map[string][]leases.Resource) // by lease ID
	err = r.config.Transactions.Atomically(ctx, func(ctx context.Context, _ images.Store) error {
		for n, e := range entries {
			if !wanted[n] {
				continue
			}
			l := leases.Lease{ID: leaseID(e)}
			known, err := r.create(ctx, l.ID, e)
			if err != nil {
				return err
			}
			if !known {
				created = append(created, l.ID)
			}
			for _, res := range resources[n] {
				failpoint.Reach("retain.add")
				if err := r.config.Leases.AddResource(ctx, l, res); err != nil {
					return fmt.Errorf("add %s to the retain lease of %s: %w", res.ID, e.Root.Digest, err)
				}
				added[l.ID] = append(added[l.ID], res)
			}
		}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		// Without transactions, the leases may exist.
		for _, id := range created {
			h := r.held[id]
			h.holds = nil
			r.held[id] = h
		}
		return err
	}
	for id, all := range added {
		for _, res := range all {
			r.held[id].holds[res] = true
		}
	}
	failpoint.Reach("retain.done")
	return nil
}
