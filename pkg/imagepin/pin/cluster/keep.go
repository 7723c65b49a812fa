package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// confirmedFor is how long it is remembered that the cluster has the ImagePin of a copy that the node does not use.
const confirmedFor = 24 * time.Hour

// keeper keeps the copies of ImagePins that the node does not use while the cluster has them.
type keeper struct {
	// exists is [Claims.Exists].
	exists func(ctx context.Context, namespace string, owner policy.Owner, image string) (bool, error)

	mu        sync.Mutex
	confirmed map[pin.ID]time.Time
}

// Keep returns which of the unused pins stay: the copies whose ImagePin the cluster has. Kubernetes deletes an ImagePin with its
// revision, so the pin of a revision that is scaled to zero stays. Keep asks for one ImagePin after the other, and for each at most
// once in confirmedFor. If the API server does not answer, it asks for no more of them, and those that it has not asked for stay.
func (k *keeper) Keep(ctx context.Context, unused []pin.Pin) map[pin.ID]bool {
	kept := make(map[pin.ID]bool)
	known := k.known()
	now := make(map[pin.ID]time.Time)
	var unavailable error
	for _, p := range unused {
		owner, ok := p.Scope.Owner()
		if !ok || p.By != pin.ByCluster {
			continue
		}
		at, ok := known[p.ID]
		if ok && time.Since(at) < confirmedFor {
			now[p.ID], kept[p.ID] = at, true
			continue
		}
		if unavailable != nil || ctx.Err() != nil {
			kept[p.ID] = true
			continue
		}
		asked := time.Now()
		exists, err := k.exists(ctx, p.Scope.Namespace(), owner, p.Ref)
		kept[p.ID] = exists || err != nil // a foreign ImagePin does not say that the revision is gone
		if errdefs.IsUnavailable(err) {
			unavailable = err
		} else if kept[p.ID] && ctx.Err() == nil {
			now[p.ID] = asked
		}
	}
	if unavailable != nil {
		log.G(ctx).WithError(unavailable).Info("keeping the unused copies of ImagePins, because the Kubernetes API does not answer")
	}
	k.remember(now)
	return kept
}

func (k *keeper) known() map[pin.ID]time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.confirmed
}

// remember replaces what is remembered. Pins that are used again, or are gone, are forgotten.
func (k *keeper) remember(now map[pin.ID]time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.confirmed = now
}
