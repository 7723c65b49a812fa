package cri

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// leaseImages leases images, so that neither garbage collection nor a removal deletes their content and snapshots while a
// call that uses them is forwarded. The returned function deletes the lease.
func (s *containers) leaseImages(ctx context.Context, entries ...imagepin.Entry) (release func(), _ error) {
	if len(entries) == 0 {
		return func() {}, nil
	}
	ctx = s.namespaced(ctx)
	var l leases.Lease
	release = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), visibleTimeout)
		defer cancel()
		if err := s.Leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("lease", l.ID).Warn("failed to delete lease, it remains until it expires")
		}
	}
	if err := s.Records.Atomically(ctx, func(ctx context.Context, _ images.Store) (err error) {
		l, err = s.Leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Hour),
			leases.WithLabel(imagepin.LeaseLabel, "use"))
		for _, r := range needed(entries) {
			if err != nil {
				break
			}
			err = s.Leases.AddResource(ctx, l, r)
		}
		return err
	}); err != nil {
		if l.ID != "" {
			release()
		}
		return nil, fmt.Errorf("lease images: %w", err)
	}
	failpoint.Reach("use.leased")
	return release, nil
}

// needed returns what a lease must list to hold images. The manifest references its configuration. The configuration
// references the snapshot only until another tool removes the image's records, which does not wait for calls.
func needed(entries []imagepin.Entry) []leases.Resource {
	var all []leases.Resource
	for _, e := range entries {
		all = append(all, leases.Resource{ID: e.Manifest.String(), Type: "content"})
		if e.ChainID != "" {
			all = append(all, leases.Resource{ID: e.ChainID.String(), Type: "snapshots/" + e.Target.Snapshotter})
		}
	}
	return all
}
