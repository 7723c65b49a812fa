package pull

import (
	"context"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

const (
	// cleanupTimeout bounds what is done after the caller has gone.
	cleanupTimeout = 30 * time.Second
	// collectWait bounds how long a pull that has failed waits for what it has left
	// to be collected.
	collectWait = 2 * time.Second
)

// withLease runs fn under a lease that holds everything fn fetches and unpacks.
// Where fn fails, what it left is collected behind: the caller may hold a lock.
func (p *Puller) withLease(ctx context.Context, fn func(context.Context) error) error {
	err := lease.With(ctx, p.Leases, lease.Pull, fn)
	if err != nil {
		p.collectBehind()
	}
	return err
}

// collectBehind has what nothing holds any more collected, and does not wait for it.
func (p *Puller) collectBehind() {
	if p.Garbage != nil {
		p.Garbage()
	}
}

// collect is collectBehind, and waits a moment for it: a collection takes as long as
// the slowest snapshotter. The caller holds no lock of its own; CreateContainer and
// RunPodSandbox hold the digest for reading meanwhile, which keeps it from removal.
func (p *Puller) collect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), collectWait)
	defer cancel()
	if err := p.Store.Collect(ctx); err != nil {
		p.collectBehind()
	}
}
