// Package family provides the snapshots of a snapshotter, and which of them stand on which.
package family

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/snapshots"
)

// Family are the snapshots of a snapshotter by name.
type Family map[string]snapshots.Info

// Of lists the snapshots of a snapshotter.
func Of(ctx context.Context, snapshotter snapshots.Snapshotter) (Family, error) {
	all := make(Family)
	err := snapshotter.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		all[i.Name] = i
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	return all, nil
}

// Chain returns a snapshot and those that it stands on, lowest first.
func (f Family) Chain(name string) (chain []string) {
	for ; name != ""; name = f[name].Parent {
		chain = append(chain, name)
	}
	slices.Reverse(chain)
	return chain
}

// StandsOn reports whether a snapshot is one of others, or stands on one.
func (f Family) StandsOn(name string, others ...string) bool {
	return slices.ContainsFunc(f.Chain(name), func(below string) bool { return slices.Contains(others, below) })
}

// WithDescendants returns a snapshot and all its descendants, highest first.
func (f Family) WithDescendants(name string) []string {
	children := make(map[string][]string)
	for child, i := range f {
		children[i.Parent] = append(children[i.Parent], child)
	}
	var add func(name string)
	var all []string
	add = func(name string) {
		for _, child := range children[name] {
			add(child)
		}
		all = append(all, name)
	}
	add(name)
	return all
}
