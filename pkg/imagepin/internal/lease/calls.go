package lease

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
)

// Calls wraps containerd's lease manager. It remembers the leases of finished calls that could not be deleted because
// containerd was unavailable. The next start of this process would delete them, but possibly only containerd restarts.
type Calls struct {
	leases.Manager
	mu    sync.Mutex
	calls map[string]bool // by ID: whether the call is over
}

// NewCalls returns a Calls that uses m.
func NewCalls(m leases.Manager) *Calls {
	return &Calls{Manager: m, calls: make(map[string]bool)}
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
		c.calls[l.ID] = err != nil
		c.mu.Unlock()
	}
	return made, err
}

// Delete implements leases.Manager.
func (c *Calls) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	err := c.Manager.Delete(ctx, l, opts...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.calls[l.ID]; ok {
		if err == nil || errdefs.IsNotFound(err) {
			delete(c.calls, l.ID)
		} else {
			c.calls[l.ID] = true
		}
	}
	return err
}

// Retry deletes the leases of calls that are over.
func (c *Calls) Retry(ctx context.Context) error {
	c.mu.Lock()
	var over []string
	for id, done := range c.calls {
		if done {
			over = append(over, id)
		}
	}
	c.mu.Unlock()
	slices.Sort(over) // a map has no order, and replays of the simulator compare the calls
	for _, id := range over {
		if err := c.Delete(ctx, leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete the lease of a finished call: %w", err)
		}
	}
	return nil
}
