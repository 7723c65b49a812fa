package store

import (
	"context"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// plan describes which records to update, and how.
type plan struct {
	view  view
	names []string // the records, in the order of the writes
	// gone are the names of the key labels to remove.
	gone map[string]struct{}
	// removable are the targets of the records that may be removed.
	removable map[digest.Digest]bool
	// keepIDs keeps the records of image IDs that no entry needs.
	keepIDs bool
	proof   *imagepin.Proof // used now, recorded on the records that carry keys; nil for none

	mayCreate    creator
	precondition precondition // nil is none
	// needed is set if it is known that there is something to write.
	needed bool
}

// creator reports whether a change may create a record. A record that is missing otherwise was deleted by another tool,
// and must not be created again. Its event is still to come.
type creator func(name string) bool

// precondition must hold for a change to be made. It is checked in the transaction that makes the change, if there are
// transactions.
type precondition func(context.Context, images.Store) error

// changes returns the writes that bring the records of the plan to their desired state.
func (p *plan) changes(ctx context.Context, store images.Store) ([]change, error) {
	if p.precondition != nil {
		if err := p.precondition(ctx, store); err != nil {
			return nil, err
		}
	}
	var changes []change
	for _, name := range p.names {
		c, needed, err := p.change(ctx, store, name)
		if err != nil {
			return nil, err
		}
		if needed && (!c.create || p.mayCreate(name)) {
			changes = append(changes, c)
		}
	}
	return changes, nil
}

// maxPlans is how often a plan is made again because another tool has removed a record while it was written.
const maxPlans = 10

// write makes the changes, and returns what it has written. Without a transaction, another tool can remove a record after
// it was read: then the rest of the changes is computed again.
func (p *plan) write(ctx context.Context, store images.Store) (written []change, _ error) {
	for made := 1; ; made++ {
		changes, err := p.changes(ctx, store)
		if err != nil {
			return nil, err
		}
		done, err := writeAll(ctx, store, changes)
		written = append(written, done...)
		if !errdefs.IsNotFound(err) || made == maxPlans {
			return written, err
		}
	}
}

// writeAll writes changes in their order up to the first error.
func writeAll(ctx context.Context, store images.Store, changes []change) (written []change, _ error) {
	for i := range changes {
		failpoint.Reach("store.write")
		if err := changes[i].write(ctx, store); err != nil {
			return changes[:i], err
		}
	}
	return changes, nil
}

// change returns the write that brings the record called name to its desired state. needed reports whether there is
// one.
func (p *plan) change(ctx context.Context, store images.Store, name string) (c change, needed bool, _ error) {
	current, err := readRecord(ctx, store, name)
	if err != nil {
		return change{}, false, err
	}
	want, err := p.view.desired(name, current)
	if err != nil {
		return change{}, false, err
	}
	if want == nil && current != nil && (!p.removable[current.Target.Digest] || p.keepIDs && isID(name)) {
		// Another tool has changed the target, and a removal must not delete a record that belongs to no key. Only
		// remove the labels, which are for another image.
		c, needed = strip(*current, p.gone)
		return c, needed, nil
	}
	c, needed = diff(name, current, want, p.gone, p.proof)
	return c, needed, nil
}
