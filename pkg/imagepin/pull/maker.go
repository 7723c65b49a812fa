package pull

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/pkg/tracing"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Maker pulls, unpacks and records images whose digest is decided. It is safe for concurrent use.
type Maker struct {
	config   Config
	unpacker *unpacker
	resumes  *resumes
	accepted *accepted
}

// New returns a Maker.
func New(c Config) *Maker {
	if c.Clean == nil {
		c.Clean = func(context.Context) error { return nil }
	}
	return &Maker{config: c, unpacker: newUnpacker(c), resumes: newResumes(c), accepted: newAccepted()}
}

// maxTries is the maximum number of attempts for an image. A new attempt is needed if something that the image needs
// was removed, or its reference was pinned, during the last one.
const maxTries = 5

// Make fetches, unpacks and records the image of a verdict, and returns once containerd's CRI service has it. It skips
// what is ready.
//
// Errors are [imagepin.Error]: ImageVerificationFailed (ErrPermissionDenied), NoMatchingPlatform and PinnedDigestGone
// (ErrNotFound), ContentCorrupt (ErrFailedPrecondition), ContentDamaged (ErrDataLoss), PullStalled
// (context.DeadlineExceeded), RetainLimitReached and PinLimitReached (ErrResourceExhausted), UpstreamNotSynced
// (ErrUnavailable) and CannotPullImage (the class of its cause).
func (m *Maker) Make(ctx context.Context, j Job) (entry imagepin.Entry, outcome Outcome, err error) {
	ctx, end := startStep(ctx, "ready", tracing.WithAttribute("image.ref", j.Ref.String()), tracing.WithAttribute("image.target", j.Runtime.Target.String()),
		tracing.WithAttribute("image.digest", j.Root.Digest.String()))
	defer func() { end(err) }()
	entry, outcome, err = m.tryMake(ctx, &j)
	if err = m.failed(ctx, j, err); err != nil {
		outcome = failure(ctx)
	}
	tracing.SpanFromContext(ctx).SetAttributes(tracing.Attribute("done", string(outcome)))
	return entry, outcome, err
}

// tryMake makes the image of a job ready. It starts again if the node changed meanwhile, with the verdict that applies then.
func (m *Maker) tryMake(ctx context.Context, j *Job) (entry imagepin.Entry, outcome Outcome, err error) {
	if m.config.WaitCompared != nil && !j.Record.restores() {
		if err := m.config.WaitCompared(ctx, j.Ref.String()); err != nil {
			return entry, "", err
		}
	}
	for range maxTries {
		entry, outcome, err = m.makeOnce(ctx, *j)
		var moved *decide.MovedError
		switch {
		case errors.As(err, &moved):
			j.Verdict, j.verified = moved.Verdict, false
		case errors.Is(err, errRemoved):
			j.retry = true
		case errno.NoSpace(err) && ctx.Err() == nil && m.resumes.free(ctx):
			m.collect(ctx)
			j.retry = true
		default:
			return entry, outcome, err
		}
	}
	m.collect(ctx) // no further attempt needs what the last one left
	return entry, outcome, err
}

// retryable reports whether a job that failed with err is tried again. Its content is not collected before the next
// attempt, which needs most of it.
func retryable(err error) bool {
	var moved *decide.MovedError
	return errors.As(err, &moved) || errors.Is(err, errRemoved)
}

// WaitVisible waits until containerd's CRI service has an image as it is recorded. It sends no request if that is known. It
// fails with [imagepin.UpstreamNotSynced] (ErrUnavailable).
func (m *Maker) WaitVisible(ctx context.Context, e imagepin.Entry) (err error) {
	names := m.config.Images.Unsynced(e)
	if len(names) == 0 {
		return nil
	}
	unsynced := func(name string) bool { return slices.Contains(m.config.Images.Unsynced(e), name) }
	ctx, end := startStep(ctx, "visible")
	defer func() { end(err) }()
	if err := m.config.Upstream.WaitVisible(ctx, e.ImageID, names, unsynced); err != nil {
		return err
	}
	m.config.Images.MarkSynced(names...)
	failpoint.Reach("pull.visible")
	return nil
}

const (
	// cleanupTimeout bounds cleanup after the caller has gone.
	cleanupTimeout = 30 * time.Second
	// collectWait bounds how long a failed pull waits for garbage collection.
	collectWait = 2 * time.Second
)

// withLease runs fn under a lease that holds everything that fn fetches and unpacks. If fn fails, garbage is collected
// later, because the caller may hold a lock.
func (m *Maker) withLease(ctx context.Context, fn func(context.Context) error) error {
	err := lease.With(ctx, m.config.Leases, lease.Pull, fn)
	if err != nil {
		m.config.Garbage.CollectAsync()
	}
	return err
}

// collect collects garbage and waits up to collectWait: a collection takes as long as the slowest snapshotter. The
// caller must not hold a lock of its own. CreateContainer and RunPodSandbox hold the digest for use meanwhile, which
// prevents its removal.
func (m *Maker) collect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), collectWait)
	defer cancel()
	if err := m.config.Garbage.Collect(ctx); err != nil {
		m.config.Garbage.CollectAsync()
	}
}

// startStep starts the span of a step of a pull. Call end with the step's error.
func startStep(ctx context.Context, step string, opts ...tracing.SpanOpt) (_ context.Context, end func(error)) {
	ctx, span := tracing.StartSpan(ctx, tracing.Name("imagepin", step), opts...)
	return ctx, func(err error) {
		span.SetStatus(resolve.RedactError(err))
		span.End()
	}
}
