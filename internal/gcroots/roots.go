// Package gcroots protects content and snapshots from containerd's garbage collection while a call in containerd's
// process uses them. Unlike a lease, this writes nothing: a lease costs two syncs to disk for each call.
package gcroots

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/gc"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/upstream"
)

// ResourceType is the type to register [Roots] with, see [metadata.DB.RegisterCollectibleResource]. There are no resources
// of this type. It is the last type that containerd accepts. containerd's own types count up from 1.
const ResourceType = gc.ResourceMax - 1

// Roots is the set of the resources that calls hold. Garbage collections keep them, and what they reference. It
// implements [metadata.Collector]. It is safe for concurrent use.
type Roots struct {
	mu   sync.Mutex
	held map[gc.Node]int // by resource: how many calls hold it
	// collections is how many collections run. idle is closed when none runs any more; it is nil while none runs.
	collections int
	idle        chan struct{}
}

// New returns an empty set.
func New() *Roots { return &Roots{held: make(map[gc.Node]int)} }

// Hold protects resources in the namespace of ctx until release is called, whether they exist or not. A collection that
// has begun before may still remove them, so Hold first waits until that has removed what it removes. A resource that
// exists when Hold returns exists until release is called, unless a client removes it by name.
//
// Hold supports the types "content" and "snapshots/NAME", and fails with ErrNotImplemented for others. It returns the
// context's error if the context ends while it waits.
func (r *Roots) Hold(ctx context.Context, resources ...leases.Resource) (release func(), _ error) {
	nodes, err := nodesOf(ctx, resources)
	if err != nil {
		return nil, err
	}
	if err := r.add(ctx, nodes); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { r.remove(nodes) }), nil
}

func nodesOf(ctx context.Context, resources []leases.Resource) ([]gc.Node, error) {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	nodes := make([]gc.Node, len(resources))
	for i, res := range resources {
		node := gc.Node{Type: metadata.ResourceContent, Namespace: namespace, Key: res.ID}
		if snapshotter, ok := strings.CutPrefix(res.Type, upstream.SnapshotType); ok {
			node.Type, node.Key = metadata.ResourceSnapshot, snapshotter+"/"+res.ID
		} else if res.Type != upstream.ContentType {
			return nil, fmt.Errorf("hold a resource of type %q: %w", res.Type, errdefs.ErrNotImplemented)
		}
		nodes[i] = node
	}
	return nodes, nil
}

// add adds nodes while no collection runs.
func (r *Roots) add(ctx context.Context, nodes []gc.Node) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.collections > 0 {
		idle := r.idle
		r.mu.Unlock()
		var err error
		select {
		case <-idle:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		r.mu.Lock()
		if err != nil {
			return err
		}
	}
	for _, n := range nodes {
		r.held[n]++
	}
	return nil
}

func (r *Roots) remove(nodes []gc.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range nodes {
		if r.held[n]--; r.held[n] == 0 {
			delete(r.held, n)
		}
	}
}

// StartCollection implements [metadata.Collector]. containerd calls it before it looks for resources in use, and ends the
// collection after it has removed the others from its database. It locks its database meanwhile.
func (r *Roots) StartCollection(context.Context) (metadata.CollectionContext, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.collections++; r.collections == 1 {
		r.idle = make(chan struct{})
	}
	return &collection{roots: r, held: maps.Clone(r.held)}, nil
}

// ReferenceLabel implements [metadata.Collector]. There are no references to resources of this type.
func (r *Roots) ReferenceLabel() string { return "" }

// end ends a collection.
func (r *Roots) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	// containerd ends a collection in a goroutine, and the next one may have begun.
	if r.collections--; r.collections == 0 {
		close(r.idle)
		r.idle = nil
	}
}

// collection is one garbage collection. It implements [metadata.CollectionContext].
type collection struct {
	roots *Roots
	held  map[gc.Node]int // when the collection began
}

// Active sends the resources that are held.
func (c *collection) Active(namespace string, fn func(gc.Node)) {
	for n := range c.held {
		if n.Namespace == namespace {
			fn(n)
		}
	}
}

// All sends nothing, because there are no resources to collect.
func (c *collection) All(func(gc.Node)) {}

// Leased sends nothing, because resources are held by calls and not by leases.
func (c *collection) Leased(_, _ string, _ func(gc.Node)) {}

// Remove does nothing.
func (c *collection) Remove(gc.Node) {}

// Cancel ends a collection that failed.
func (c *collection) Cancel() error {
	c.roots.end()
	return nil
}

// Finish ends a collection.
func (c *collection) Finish() error {
	c.roots.end()
	return nil
}
