package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

// fetchFor is how long a fetch is retried after repairLast while the registry is unavailable: the network of a node can be
// ready minutes after containerd. After that it is retried less often.
const fetchFor = 5 * time.Minute

// fetchQueue returns the queue for the fetch of a lost key. ok is false if the key is not fetched: no runtime handler
// has its target, or its image came from a file, so that no registry is known to have it.
func (p *repairs) fetchQueue(e imagepin.Entry) (_ queueName, ok bool) {
	ref, err := reference.ParseNamed(e.Ref)
	if _, hasHandler := p.config.Runtimes().ForTarget(e.Target); err != nil || !hasHandler || e.Source == imagepin.SourceImported {
		return queueName{}, false
	}
	return queueName{e.Target.Snapshotter, reference.Domain(ref)}, true
}

// fetchOne fetches what a key lacks with the node's own credentials. If that fails, the key is damaged, and the fetch is
// retried. Only if its registry does not have the image any more, the key is dropped. It is a [repairFunc].
func (p *repairs) fetchOne(ctx context.Context, loss queued) (retry time.Duration) {
	entry := logOf(ctx, loss.Entry)
	defer afterPanic(entry, &retry)
	if p.isReady(loss.Loss) {
		return 0
	}
	outcome, err := p.config.Puller.Repair(ctx, loss.Entry)
	switch {
	case ctx.Err() != nil:
		return repairLast
	case err == nil && outcome != pull.Unneeded:
		entry.Infof("repaired key from its registry: %s", loss.Reason)
		return 0
	case err == nil:
		return p.dropLost(ctx, loss.Entry)
	case p.gone(loss.Entry, err):
		entry.WithError(imagepin.BoundError(err, imagepin.MaxLogText)).Warnf("dropping key, its registry no longer has the image: %s", loss.Reason)
		p.dropped.Add(1)
		return p.dropLost(ctx, loss.Entry)
	case temporary(err) && time.Since(loss.since) < fetchFor:
		return p.keepDamaged(ctx, loss.Loss, err, repairLast)
	case temporary(err):
		return p.keepDamaged(ctx, loss.Loss, err, repairLastFetch)
	}
	return p.keepDamaged(ctx, loss.Loss, err, repairLastRefused)
}

// temporary reports whether an error can end by itself, without a change of the image or of the node's credentials. A layer
// that a file system cannot store stays as it is.
func temporary(err error) bool {
	return errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) || errno.Network(err) || errno.Passing(err)
}
