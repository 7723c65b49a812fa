package cri

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Holder protects content and snapshots from garbage collection during a call.
type Holder interface {
	// Hold protects resources until release is called. They may be missing.
	Hold(ctx context.Context, resources ...leases.Resource) (release func(), _ error)
}

// holdImages protects images, so that neither garbage collection nor a removal deletes their content and snapshots while
// a call that uses them is forwarded. The returned function ends that.
func (s *containers) holdImages(ctx context.Context, entries ...imagepin.Entry) (release func(), _ error) {
	if len(entries) == 0 {
		return func() {}, nil
	}
	free, err := s.Holder.Hold(s.namespaced(ctx), needed(entries)...)
	if err != nil {
		return nil, fmt.Errorf("hold images: %w", err)
	}
	return func() {
		free()
		// A collection that ran during the call kept what another tool had removed.
		if slices.ContainsFunc(entries, func(e imagepin.Entry) bool { return len(s.Store.ByID(e.ImageID)) == 0 }) {
			s.Released()
		}
	}, nil
}

// needed returns what must be held to keep images. The manifest references its configuration. The configuration
// references the snapshot only until another tool removes the image's records, which does not wait for calls.
func needed(entries []imagepin.Entry) []leases.Resource {
	var all []leases.Resource
	for _, e := range entries {
		all = append(all, leases.Resource{ID: e.Manifest.String(), Type: upstream.ContentType})
		if e.ChainID != "" {
			all = append(all, leases.Resource{ID: e.ChainID.String(), Type: upstream.SnapshotType + e.Target.Snapshotter})
		}
	}
	return all
}
