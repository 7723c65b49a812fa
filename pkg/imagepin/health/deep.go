package health

import (
	"context"

	"github.com/containerd/errdefs"
	"golang.org/x/time/rate"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// DeepOptions has the options of a deep check. The zero value reads without a rate limit.
type DeepOptions struct {
	// BytesPerSecond limits how fast content is read. Zero means no limit.
	BytesPerSecond int64
	// PinnedRef may be nil.
	PinnedRef PinnedRef
	// Progress is called with the progress of the check. It may be nil.
	Progress func(DeepProgress)
}

// DeepProgress is the progress of a deep check.
type DeepProgress struct {
	Blobs, BlobsTotal         int
	Bytes, BytesTotal         int64
	Snapshots, SnapshotsTotal int
}

// DeepCheck is [Checker.Check] that also reads all content that keys and pins need and compares it with its digests, checks that
// the directories of snapshots exist, and compares all files of snapshots with the layers in the content store. It changes
// nothing. At the end it checks content and snapshots with problems again, so that it does not report what was replaced in
// the meantime. It stops when ctx is done.
func (c *Checker) DeepCheck(ctx context.Context, d DeepOptions) (Report, error) {
	have, err := c.Inventory(ctx)
	if err != nil {
		return Report{}, err
	}
	needed, err := c.needed(ctx, have)
	if err != nil {
		return Report{}, err
	}
	snapshots := c.config.Images.Snapshots()
	run := &deepRun{DeepOptions: d, checker: c, limiter: limiterOf(d.BytesPerSecond)}
	run.done.BlobsTotal, run.done.SnapshotsTotal = len(needed), len(snapshots)
	for _, b := range needed {
		run.done.BytesTotal += b.Size
	}
	sizes, err := c.sizes(ctx, snapshots)
	if err != nil {
		return Report{}, err
	}
	for _, size := range sizes {
		run.done.BytesTotal += size
	}
	bad, err := run.verifyBlobs(ctx, needed)
	if err != nil {
		return Report{}, err
	}
	missing, compared, err := run.checkSnapshots(ctx, snapshots, sizes)
	if err != nil {
		return Report{}, err
	}
	if have, err = c.Inventory(ctx); err != nil {
		return Report{}, err
	}
	for _, b := range bad {
		problem, err := run.verify(ctx, b, nil)
		if err != nil {
			return Report{}, err
		}
		if problem != nil {
			have.files.noteResult(b.Digest, problem)
		}
	}
	for sn, why := range missing {
		have.addMissingDirectory(sn.Snapshotter, sn.ChainID, why)
	}
	report, err := c.checkAgainst(ctx, have)
	if err != nil {
		return report, err
	}
	c.checkRetained(have, needed, d.PinnedRef, &report)
	c.addUnverified(compared, &report)
	return report, nil
}

// deepRun is a single deep check.
type deepRun struct {
	DeepOptions
	checker *Checker
	limiter *rate.Limiter
	done    DeepProgress
}

func (r *deepRun) report() {
	if r.Progress != nil {
		r.Progress(r.done)
	}
}

// verifyBlobs reads blobs one by one, and returns those that are damaged or cannot be read.
func (r *deepRun) verifyBlobs(ctx context.Context, needed []blob) (bad []blob, _ error) {
	for _, b := range needed {
		before := r.done.Bytes
		problem, err := r.verify(ctx, b, func(n int64) error {
			r.done.Bytes += n
			r.report()
			return r.wait(ctx, n)
		})
		if err != nil {
			return nil, err
		}
		if problem != nil {
			bad = append(bad, b)
		}
		r.done.Blobs++
		r.done.Bytes = before + b.Size
		r.report()
	}
	return bad, nil
}

// verify reads one blob. problem is a [*blobs.Damage], or another error if it is unknown whether the blob is damaged.
func (r *deepRun) verify(ctx context.Context, b blob, read func(int64) error) (problem, _ error) {
	problem = blobs.Verify(ctx, r.checker.config.Content, b.Digest, b.Size, read)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if problem == nil {
		return nil, nil
	}
	if _, err := r.checker.config.Content.Info(ctx, b.Digest); errdefs.IsNotFound(err) {
		return nil, nil // the blob was removed concurrently
	}
	return problem, nil
}

// burst is how many bytes are read without a pause.
const burst = 1 << 20

// limiterOf returns the limiter of a check that reads bytes per second; zero means no limit.
func limiterOf(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return rate.NewLimiter(rate.Inf, burst)
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), burst)
}

// wait waits until n more bytes may be read.
func (r *deepRun) wait(ctx context.Context, n int64) error {
	for ; n > 0; n -= burst {
		if r.limiter.WaitN(ctx, int(min(n, burst))) != nil {
			<-ctx.Done() // WaitN does not wait if it would take longer than the deadline
			break
		}
	}
	return ctx.Err()
}
