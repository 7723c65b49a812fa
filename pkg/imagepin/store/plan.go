package store

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// plan is what is to be brought into line.
type plan struct {
	view  view
	names []string // of the records, in the order in which they are written
	// gone are the names of key labels that are taken away.
	gone map[string]struct{}
	// ours are the targets of records that may be removed.
	ours  map[digest.Digest]bool
	proof string // noted on the records that carry keys, where there is one

	mayCreate creator
	still     condition // nil is none
}

// creator tells which records a change may make. One that is missing otherwise
// was deleted by another tool, whose event is still to come: it must not be
// brought back.
type creator func(name string) bool

// condition is what has to hold for a change to be made. It is looked at in the
// transaction that makes the change, where containerd has transactions.
type condition func(context.Context, images.Store) error

// changes gives the writes that bring the records of the plan into line, as they
// are now.
func (p *plan) changes(ctx context.Context, store images.Store) ([]change, error) {
	if p.still != nil {
		if err := p.still(ctx, store); err != nil {
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

// change gives the write, if any is needed, that makes the record called name
// what the view wants.
func (p *plan) change(ctx context.Context, store images.Store, name string) (c change, needed bool, _ error) {
	var current *images.Image
	img, err := store.Get(ctx, name)
	switch {
	case err == nil:
		current = &img
	case !errdefs.IsNotFound(err):
		return change{}, false, fmt.Errorf("read image record %s: %w", name, err)
	}
	want, err := p.view.desired(name, current)
	if err != nil {
		return change{}, false, err
	}
	if want == nil && current != nil && !p.ours[current.Target.Digest] {
		// Another tool has moved it, and it is not for a removal to take away
		// what no key speaks of. What it carried of ours speaks of something else.
		c, needed = strip(*current, p.gone)
		return c, needed, nil
	}
	c, needed = diff(name, current, want, p.gone, p.proof)
	return c, needed, nil
}
