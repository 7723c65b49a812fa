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

// fetchFor is how long a fetch is retried while the registry is unavailable. The network of a node can be ready minutes
// after containerd. The content of a key that is not dropped stays on the node, where kubelet's image garbage
// collection does not see it.
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

// fetchOne fetches what a key lacks with the node's own credentials, or drops the key. While the registry is unavailable,
// it is retried until fetchFor has passed. It is a [repairFunc].
func (p *repairs) fetchOne(ctx context.Context, loss queued) (retry time.Duration) {
	entry := logOf(ctx, loss.Entry)
	defer afterPanic(entry, &retry)
	outcome, err := p.config.Puller.Repair(ctx, loss.Entry)
	if ctx.Err() != nil {
		return repairLast
	}
	switch {
	case err == nil && outcome != pull.Unneeded:
		entry.Infof("repaired key from its registry: %s", loss.Reason)
		return 0
	case temporary(err) && time.Since(loss.since) < fetchFor:
		entry.WithError(imagepin.BoundError(err, imagepin.MaxLogText)).Warnf("cannot repair key yet, retrying: %s", loss.Reason)
		return repairLast
	case err != nil:
		entry.WithError(imagepin.BoundError(err, imagepin.MaxLogText)).Warnf("dropping key that cannot be repaired: %s", loss.Reason)
	}
	return p.dropLost(ctx, loss.Entry)
}

// temporary reports whether an error can end by itself, without a change of the image or of the node's credentials. A layer
// that a file system cannot store stays as it is.
func temporary(err error) bool {
	return errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) || errno.Network(err) || errno.Passing(err)
}
