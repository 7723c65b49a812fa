package retain

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

// syncTimeout limits a Sync, which goes on after its caller's context has ended, because pins and records stay changed.
const syncTimeout = 30 * time.Second

// SyncAll reads the existing leases, and updates those of all digests.
func (r *Retainer) SyncAll(ctx context.Context) error {
	if err := r.load(ctx); err != nil {
		return err
	}
	if err := r.release(ctx); err != nil {
		return err
	}
	for _, root := range r.config.Pins.Retained() {
		if err := r.syncRetained(ctx, root); err != nil {
			return err
		}
	}
	return nil
}

// Sync updates the leases of digests after pins or images have changed. If ctx has a lease, this lease holds the images
// while they are added. Sync goes on after ctx has ended.
func (r *Retainer) Sync(ctx context.Context, roots ...digest.Digest) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), syncTimeout)
	defer cancel()
	released := false
	for _, root := range roots {
		if r.config.Pins.Retains(root) {
			if err := r.syncRetained(ctx, root); err != nil {
				return err
			}
		} else if !released {
			released = true
			if err := r.release(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Synced reports whether leases hold all images of a digest that a pin retains.
func (r *Retainer) Synced(root digest.Digest) bool {
	if !r.config.Pins.Retains(root) {
		return true
	}
	for _, e := range r.config.Images.ByRoot(root) {
		if !r.Holds(e) {
			return false
		}
	}
	return true
}

// syncRetained adds the images of a retained digest to leases, and adds their proofs to the pins.
func (r *Retainer) syncRetained(ctx context.Context, root digest.Digest) error {
	for _, e := range r.config.Images.ByRoot(root) {
		if err := r.hold(ctx, e); err != nil {
			return err
		}
		ref, err := reference.ParseNamed(e.Ref)
		if err != nil {
			return err
		}
		if err := r.config.Pins.Prove(ctx, ref, root, r.config.Images.Proofs(e.Record)...); err != nil {
			return err
		}
	}
	return nil
}

// hold retains an image that is ready. It skips an image that was just removed, or for which there is no room.
func (r *Retainer) hold(ctx context.Context, e imagepin.Entry) error {
	if r.Holds(e) {
		return nil
	}
	retain := func(ctx context.Context) error {
		if err := r.config.Images.AddToLease(ctx, e); err != nil {
			return err
		}
		return r.retain(ctx, e)
	}
	var err error
	if _, leased := leases.FromContext(ctx); leased {
		err = retain(ctx)
	} else {
		err = lease.With(ctx, r.config.Leases, lease.Pull, retain)
	}
	var full *imagepin.Error
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errors.As(err, &full) && full.Reason == imagepin.RetainLimitReached:
		log.G(ctx).WithError(err).WithField("ref", e.Ref).Warn("cannot retain image")
		return nil
	}
	return err
}
