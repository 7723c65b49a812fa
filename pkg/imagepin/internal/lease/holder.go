package lease

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

const (
	// useExpiration bounds how long the lease of a use holds content if nothing deletes it.
	useExpiration = time.Hour
	// releaseTimeout bounds the deletion of such a lease, for which a call waits.
	releaseTimeout = 10 * time.Second
)

// Transactions makes several writes at once, if there are transactions. [store.Records] implements it.
type Transactions interface {
	Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error
}

// Holder holds resources with leases, for imagepin outside of containerd's process.
type Holder struct {
	leases       leases.Manager
	transactions Transactions
}

// NewHolder returns a Holder. The transactions must be those of the lease manager's database.
func NewHolder(m leases.Manager, t Transactions) *Holder { return &Holder{m, t} }

// Hold creates a lease with the purpose [Use] that lists resources. release deletes it.
func (h *Holder) Hold(ctx context.Context, resources ...leases.Resource) (release func(), _ error) {
	var l leases.Lease
	release = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if err := h.leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("lease", l.ID).Warn("failed to delete lease, it remains until it expires")
		}
	}
	if err := h.transactions.Atomically(ctx, func(ctx context.Context, _ images.Store) (err error) {
		l, err = h.leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(useExpiration),
			leases.WithLabel(imagepin.LeaseLabel, string(Use)))
		for _, r := range resources {
			if err != nil {
				break
			}
			err = h.leases.AddResource(ctx, l, r)
		}
		return err
	}); err != nil {
		if l.ID != "" {
			release()
		}
		return nil, fmt.Errorf("lease resources: %w", err)
	}
	failpoint.Reach("use.leased")
	return release, nil
}
