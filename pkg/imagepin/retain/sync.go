package retain

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// syncTimeout limits each step of a Sync, which goes on after its caller's context has ended, because pins and records stay
// changed. A lock has so many digests that no limit for all of them is right.
const syncTimeout = 30 * time.Second

// SyncAll reads the existing leases, and updates those of all digests.
func (r *Retainer) SyncAll(ctx context.Context) error {
	if err := r.load(ctx); err != nil {
		return err
	}
	return r.Retry(ctx)
}

// Retry releases and retains what earlier calls could not: leases that could not be deleted, and images for which there
// was no room or that could not be read.
func (r *Retainer) Retry(ctx context.Context) error {
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
// while they are added. Sync goes on after ctx has ended. It does not fail for an image that cannot be read, because it
// may not be the caller's image. It logs the image, and [Retainer.Retry] retains it later.
func (r *Retainer) Sync(ctx context.Context, roots ...digest.Digest) error {
	r.holdBatches(ctx, roots)
	released := false
	for _, root := range roots {
		sync := func(ctx context.Context) error { return r.syncRetained(ctx, root) }
		if !r.config.Pins.Retains(root) {
			if released {
				continue
			}
			sync, released = r.release, true
		}
		if err := step(ctx, sync); err != nil {
			return err
		}
	}
	return nil
}

// step is a part of a Sync.
func step(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	return run(ctx)
}

// SyncImage updates the lease of one image after it has been recorded, as [Retainer.Sync] does. It fails if the image
// cannot be read.
func (r *Retainer) SyncImage(ctx context.Context, e imagepin.Entry) error {
	if !r.config.Pins.Retains(e.Root.Digest) {
		return nil
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	return r.syncEntry(ctx, e)
}

// Synced reports whether a lease holds an image, or no pin retains it.
func (r *Retainer) Synced(e imagepin.Entry) bool {
	return !r.config.Pins.Retains(e.Root.Digest) || r.Holds(e)
}

// detached returns a context that goes on after ctx has ended, for up to syncTimeout.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), syncTimeout)
}

// syncRetained adds the images of a retained digest to leases, and adds their proofs to the pins. It logs images that
// cannot be read.
func (r *Retainer) syncRetained(ctx context.Context, root digest.Digest) error {
	for _, e := range r.config.Images.ByRoot(root) {
		err := r.syncEntry(ctx, e)
		if errors.Is(err, errUnreadable) && ctx.Err() == nil {
			logNotRetained(ctx, e, err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// syncEntry adds one image to its lease, and adds its proofs to the pins.
func (r *Retainer) syncEntry(ctx context.Context, e imagepin.Entry) error {
	if err := r.hold(ctx, e); err != nil {
		return err
	}
	if err := r.dropUnused(ctx, e); err != nil {
		return err
	}
	ref, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return err
	}
	return r.config.Pins.Prove(ctx, ref, e.Root.Digest, r.config.Images.Proofs(e.Record)...)
}

func logNotRetained(ctx context.Context, e imagepin.Entry, err error) {
	log.G(ctx).WithError(err).WithField("ref", e.Ref).Warn("cannot retain image")
}

// hold retains an image that is ready. It skips an image that was just removed, or for which there is no room.
func (r *Retainer) hold(ctx context.Context, e imagepin.Entry) error {
	if r.Holds(e) {
		return nil
	}
	err := r.leased(ctx, func(ctx context.Context) error {
		if err := r.config.Images.AddReadyToLease(ctx, e); err != nil {
			return err
		}
		return r.retain(ctx, e)
	})
	var full *imagepin.Error
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errors.As(err, &full) && full.Reason == imagepin.RetainLimitReached:
		logNotRetained(ctx, e, err)
		return nil
	}
	return err
}
