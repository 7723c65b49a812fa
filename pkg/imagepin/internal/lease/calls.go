package lease

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
)

// Calls wraps containerd's lease manager. It remembers the leases of finished calls that could not be deleted because
// containerd was unavailable. The next start of this process would delete them, but possibly only containerd restarts.
type Calls struct {
	leases.Manager
	mu    sync.Mutex
	calls map[callID]bool // whether the call is over
}

// callID identifies the lease of a call. The leases of a lock are in the namespace of pins.
type callID struct{ namespace, lease string }

func idOf(ctx context.Context, lease string) callID {
	namespace, _ := namespaces.Namespace(ctx) // without one, containerd has failed
	return callID{namespace, lease}
}

// NewCalls returns a Calls that uses m.
func NewCalls(m leases.Manager) *Calls {
	return &Calls{Manager: m, calls: make(map[callID]bool)}
}

// createTimeout bounds how long Create waits after its caller has gone.
const createTimeout = 10 * time.Second

// Create implements leases.Manager. It does not stop when the caller has gone, because the lease would then be unknown.
// An error does not mean that there is no lease: the answer may have been lost.
func (c *Calls) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
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
	made, err := c.Manager.Create(ctx, func(to *leases.Lease) error { *to = l; return nil })
	if ofCall(l) && !errdefs.IsAlreadyExists(err) {
		if err == nil {
			l = made // the manager may have chosen another ID
		}
		c.mu.Lock()
		c.calls[idOf(ctx, l.ID)] = err != nil
		c.mu.Unlock()
	}
	return made, err
}

// Delete implements leases.Manager.
func (c *Calls) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	err := c.Manager.Delete(ctx, l, opts...)
	c.mu.Lock()
	defer c.mu.Unlock()
	id := idOf(ctx, l.ID)
	if _, ok := c.calls[id]; ok {
		if err == nil || errdefs.IsNotFound(err) {
			delete(c.calls, id)
		} else {
			c.calls[id] = true
		}
	}
	return err
}

// Retry deletes the leases of calls that are over, in all namespaces.
func (c *Calls) Retry(ctx context.Context) error {
	c.mu.Lock()
	var over []callID
	for id, done := range c.calls {
		if done {
			over = append(over, id)
		}
	}
	c.mu.Unlock()
	// A map has no order, and replays of the simulator compare the calls.
	slices.SortFunc(over, func(a, b callID) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.lease, b.lease))
	})
	for _, id := range over {
		if err := c.Delete(namespaces.WithNamespace(ctx, id.namespace), leases.Lease{ID: id.lease}); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete the lease of a finished call: %w", err)
		}
	}
	return nil
}
