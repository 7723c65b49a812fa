package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

// undoneLeases is containerd's leases, and remembers those of calls that could
// not be deleted because containerd had gone: at the next start of this process
// they would be found, but it may be containerd alone that is started again.
type undoneLeases struct {
	leases.Manager
	mu    sync.Mutex
	calls map[string]bool // by ID: whether the call is over
}

func newLeases(m leases.Manager) *undoneLeases {
	return &undoneLeases{Manager: m, calls: make(map[string]bool)}
}

// createTimeout bounds how long a caller that has gone waits for its lease.
const createTimeout = 10 * time.Second

// Create implements leases.Manager. It ends with the answer and not with the
// caller, whose lease nobody would know of. That it fails does not say that there
// is no lease: the answer may have been lost.
func (u *undoneLeases) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	var l leases.Lease
	for _, o := range opts {
		if err := o(&l); err != nil {
			return leases.Lease{}, err
		}
	}
	if ctx.Err() != nil {
		return leases.Lease{}, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	made, err := u.Manager.Create(ctx, func(to *leases.Lease) error { *to = l; return nil })
	if lease.OfCall(l) && !errdefs.IsAlreadyExists(err) {
		u.mu.Lock()
		u.calls[l.ID] = err != nil
		u.mu.Unlock()
	}
	return made, err
}

// Delete implements leases.Manager.
func (u *undoneLeases) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	err := u.Manager.Delete(ctx, l, opts...)
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, ok := u.calls[l.ID]; ok {
		if err == nil || errdefs.IsNotFound(err) {
			delete(u.calls, l.ID)
		} else {
			u.calls[l.ID] = true
		}
	}
	return err
}

// retry deletes the leases of calls that are over.
func (u *undoneLeases) retry(ctx context.Context) error {
	u.mu.Lock()
	var over []string
	for id, done := range u.calls {
		if done {
			over = append(over, id)
		}
	}
	u.mu.Unlock()
	for _, id := range over {
		if err := u.Delete(ctx, leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete the lease of a call that is over: %w", err)
		}
	}
	return nil
}
