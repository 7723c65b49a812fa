package pull

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

// resumes keeps what failed pulls have fetched for the next one.
type resumes struct {
	*lease.Resumes
	garbage Garbage
	// none is true if nothing is kept.
	none atomic.Bool
}

func newResumes(c Config) *resumes {
	return &resumes{Resumes: lease.NewResumes(c.Leases, c.Content), garbage: c.Garbage}
}

// with runs a pull under a lease. pull returns the manifest of the image that is ready. Then with frees what failed pulls of it have
// fetched. If the pull fails, with keeps what was fetched for a time, unless the error is about the content.
func (r *resumes) with(ctx context.Context, pull func(context.Context) (manifest digest.Digest, _ error)) error {
	freed := false
	kept, err := r.With(ctx, func(ctx context.Context) error {
		manifest, err := pull(ctx)
		if err == nil {
			freed = r.done(ctx, manifest)
		}
		return err
	}, func(err error) bool { return ctx.Err() != nil || keeps(err) })
	if freed {
		r.garbage.CollectAsync()
	}
	if kept {
		r.none.Store(false)
		// The end of a lease starts no collection.
		time.AfterFunc(lease.ResumeExpiration+time.Minute, r.garbage.CollectAsync)
	}
	return err
}

// done frees what failed pulls of an image have fetched, which is ready now. It reports whether that was anything.
func (r *resumes) done(ctx context.Context, manifest digest.Digest) (freed bool) {
	if r.none.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	r.none.Store(true) // before it looks, as another pull may fail meanwhile
	freed, err := r.FreeOf(ctx, manifest)
	kept, kerr := r.Kept(ctx)
	if err = errors.Join(err, kerr); err != nil {
		log.G(ctx).WithError(err).Warn("cannot free what a failed pull has fetched, it stays until it expires")
	}
	if err != nil || !kept.Expires.IsZero() {
		r.none.Store(false)
	}
	return freed
}

// free frees all that failed pulls have fetched. It reports whether that was anything.
func (r *resumes) free(ctx context.Context) bool {
	freed, err := r.Free(ctx)
	if err != nil {
		log.G(ctx).WithError(err).Warn("cannot free what failed pulls have fetched")
	}
	if freed {
		log.G(ctx).Info("a file system is full, freeing what failed pulls have fetched")
	}
	return freed
}

// keeps reports whether what a failed pull has fetched can be used by the next one. It cannot if the error is about the content, or about
// who may have it. If a file system is full, it is not kept.
func keeps(err error) bool {
	if errors.Is(err, errStalled) {
		return true
	}
	if retryable(err) || errno.NoSpace(err) {
		return false
	}
	var known *imagepin.Error
	if errors.As(err, &known) && known.Reason != imagepin.CannotPullImage {
		return false
	}
	for _, class := range []func(error) bool{errdefs.IsPermissionDenied, errdefs.IsUnauthorized, errdefs.IsNotFound, errdefs.IsDataLoss, errdefs.IsInvalidArgument} {
		if class(err) {
			return false
		}
	}
	if errno.CauseOf(err).Kind == errno.Request && !AtRegistry(err) {
		return false // it fails again, for example a file of a layer that the file system cannot store
	}
	if AtRegistry(err) && (errors.Is(err, io.ErrUnexpectedEOF) || errno.Network(err)) {
		return true // of a connection
	}
	return errdefs.IsUnavailable(err) || !IsCorrupt(err)
}
