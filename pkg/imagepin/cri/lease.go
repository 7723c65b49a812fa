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

// leaseImages keeps an image from being collected while a call is forwarded that uses
// it, and from being removed. The returned function lets go.
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
			log.G(ctx).WithError(err).WithField("lease", l.ID).Warn("a lease stays until it expires")
		}
	}
	if err := s.Records.Atomically(ctx, func(ctx context.Context, _ images.Store) (err error) {
		l, err = s.Leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Hour),
			leases.WithLabel(imagepin.LeaseLabel, "use"))
		for _, e := range entries {
			if err != nil {
				break
			}
			// The manifest keeps its configuration, and that its snapshots.
			err = s.Leases.AddResource(ctx, l, leases.Resource{ID: e.Manifest.String(), Type: "content"})
		}
		return err
	}); err != nil {
		if l.ID != "" {
			release()
		}
		return nil, fmt.Errorf("hold an image: %w", err)
	}
	failpoint.Reach("use.leased")
	return release, nil
}
