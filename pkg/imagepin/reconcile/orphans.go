package reconcile

import (
	"context"

	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// orphans releases the snapshots that no key needs and that no removal has released. For example, a pull is killed after it
// has unpacked an image, and a later pull for another handler keeps the image's configuration, which references both
// snapshots.
type orphans struct {
	config *Config
	// seen are the images that no key needed to be unpacked at the last call.
	seen map[store.Unpacked]bool
}

// release releases the snapshots that no key needed at the last call either. A pull or another tool may have unpacked the
// others just now, and record a key.
func (o *orphans) release(ctx context.Context) error {
	all, err := o.config.Checker.Unpacked(ctx)
	if err != nil {
		return err
	}
	var again []store.Unpacked
	found := make(map[store.Unpacked]bool)
	for _, u := range all {
		if !o.config.Store.Unclaimed(u) {
			continue
		}
		found[u] = true
		if o.seen[u] {
			again = append(again, u)
		}
	}
	o.seen = found
	if len(again) == 0 {
		return nil
	}
	lost, err := o.config.Store.Lost(ctx)
	if err != nil {
		return err
	}
	return o.config.Store.ReleaseOrphans(ctx, again, lost...)
}

// ReleaseOrphans releases the snapshots that no key has needed since the last call. Calls must not overlap.
func (r *Reconciler) ReleaseOrphans(ctx context.Context) error { return r.orphans.release(ctx) }
