package retain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// dropUnused removes the snapshots from the lease of an image that is ready that are in a snapshotter that no runtime
// handler and no other key of the image uses: the default snapshotter has changed.
func (r *Retainer) dropUnused(ctx context.Context, e imagepin.Entry) error {
	if len(r.unused(e)) == 0 {
		return nil
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	l := leases.Lease{ID: leaseID(e)}
	for _, res := range r.unused(e) {
		failpoint.Reach("retain.unused")
		if err := r.config.Leases.DeleteResource(ctx, l, res); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove %s in %s from the retain lease of %s: %w", res.ID, res.Type, e.Root.Digest, err)
		}
		r.mu.Lock()
		delete(r.held[l.ID].holds, res)
		r.mu.Unlock()
	}
	r.config.Released()
	return nil
}

// unused returns the snapshots in the lease of an image that dropUnused removes. There are none if the lease does not
// hold the image for the target of the entry.
func (r *Retainer) unused(e imagepin.Entry) []leases.Resource {
	if !r.config.Unpacks(e.Target.Snapshotter) || !r.Holds(e) {
		return nil
	}
	r.mu.Lock()
	var all []leases.Resource
	for res := range r.held[leaseID(e)].holds {
		if name, ok := strings.CutPrefix(res.Type, upstream.SnapshotType); ok && !r.config.Unpacks(name) {
			all = append(all, res)
		}
	}
	r.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	entries := r.config.Images.ByRoot(e.Root.Digest)
	return slices.DeleteFunc(all, func(res leases.Resource) bool {
		return slices.ContainsFunc(entries, func(o imagepin.Entry) bool { return lastResource(o) == res })
	})
}
