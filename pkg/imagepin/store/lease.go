package store

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// AddToLease adds the content and snapshots of entries to the lease in ctx, and then checks that they exist. The check
// comes last, because they may have been collected before the lease held them. AddToLease writes nothing if the lease
// already holds them.
//
// It returns ErrNotFound if content or a snapshot is missing, and ErrFailedPrecondition if ctx has no lease.
func (s *presence) AddToLease(ctx context.Context, entries ...imagepin.Entry) error {
	return s.addToLease(ctx, entries, s.Present)
}

// AddReadyToLease is [Store.AddToLease] for images that are ready. It does not ask their snapshotters, which may not
// respond: the index does not have the keys of an image any more when its snapshot is released. It does not check the
// content either, see [Store.HasContent].
//
// It returns ErrNotFound if an image is not ready any more, and ErrFailedPrecondition if ctx has no lease.
func (s *presence) AddReadyToLease(ctx context.Context, entries ...imagepin.Entry) error {
	return s.addToLease(ctx, entries, func(_ context.Context, e imagepin.Entry) (bool, error) {
		return s.isNeeded(Unpacked{e.ImageID, e.Target.Snapshotter}), nil
	})
}

// addToLease adds the content and snapshots of entries to the lease in ctx, and then checks that they are there.
func (s *presence) addToLease(ctx context.Context, entries []imagepin.Entry, present func(context.Context, imagepin.Entry) (bool, error)) error {
	id, ok := leases.FromContext(ctx)
	if !ok {
		return fmt.Errorf("add %d keys to lease: the context has no lease: %w", len(entries), errdefs.ErrFailedPrecondition)
	}
	lease := leases.Lease{ID: id}
	held, err := s.config.Leases.ListResources(ctx, lease)
	if err != nil {
		return fmt.Errorf("list lease resources: %w", err)
	}
	if missing := needed(entries, held); len(missing) > 0 {
		if err := s.config.Records.Atomically(ctx, func(ctx context.Context, _ images.Store) error {
			for _, r := range missing {
				if err := s.config.Leases.AddResource(ctx, lease, r); err != nil {
					return fmt.Errorf("add %s to lease: %w", r.ID, err)
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if here, err := present(ctx, e); err != nil {
			return err
		} else if !here {
			return fmt.Errorf("content or snapshot of %s was removed concurrently: %w", e.Key, errdefs.ErrNotFound)
		}
	}
	return nil
}

// needed returns the resources of entries that a lease does not hold.
func needed(entries []imagepin.Entry, held []leases.Resource) []leases.Resource {
	known := make(map[leases.Resource]bool, len(held))
	for _, r := range held {
		known[r] = true
	}
	var missing []leases.Resource
	need := func(r leases.Resource) {
		if !known[r] {
			known[r] = true
			missing = append(missing, r)
		}
	}
	for _, e := range entries {
		need(leases.Resource{ID: e.RecordTarget.Digest.String(), Type: upstream.ContentType})
		need(leases.Resource{ID: e.Manifest.String(), Type: upstream.ContentType})
		need(leases.Resource{ID: e.ImageID.String(), Type: upstream.ContentType})
		if e.ChainID != "" {
			need(leases.Resource{ID: e.ChainID.String(), Type: upstream.SnapshotType + e.Target.Snapshotter})
		}
	}
	return missing
}
