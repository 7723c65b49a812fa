package control

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// RemoveImage implements the API.
func (s *Server) RemoveImage(ctx context.Context, r *api.RemoveImageRequest) (*api.RemoveImageResponse, error) {
	return guarded(ctx, s, "RemoveImage", func(ctx context.Context) (*api.RemoveImageResponse, error) {
		if err := imagepin.CheckReference(r.GetRef()); err != nil {
			return nil, err
		}
		removed, err := s.config.Remover.RemoveUnused(ctx, r.GetRef(), r.GetHandler())
		if err != nil {
			return nil, err
		}
		if len(removed) == 0 {
			return nil, &imagepin.Error{
				Reason: imagepin.UnknownImage, Ref: r.GetRef(), Class: errdefs.ErrNotFound,
				Message: "not on this node", Hint: "To list the images of this node, run: imagepin images",
			}
		}
		resp := &api.RemoveImageResponse{Removed: s.removedKeys(removed)}
		seen := make(map[string]bool)
		for _, e := range removed {
			if seen[e.Ref] {
				continue
			}
			seen[e.Ref] = true
			for _, p := range s.config.Pins.Scopes(e.Ref) {
				resp.Pins = append(resp.Pins, Pin(p))
			}
		}
		return resp, nil
	})
}

// Prune implements the API.
func (s *Server) Prune(ctx context.Context, r *api.PruneRequest) (*api.PruneResponse, error) {
	return guarded(ctx, s, "Prune", func(ctx context.Context) (*api.PruneResponse, error) {
		removed, err := s.config.Remover.Prune(ctx, PruneOptions{
			Handler: r.GetHandler(), Before: time.Now().Add(-time.Duration(r.GetMinAgeSeconds()) * time.Second),
			Pinned: r.GetPinned(), DryRun: r.GetDryRun(),
		})
		if err != nil {
			return nil, err
		}
		resp := &api.PruneResponse{Removed: s.removedKeys(removed)}
		seen := make(map[digest.Digest]bool)
		for _, e := range removed {
			if !seen[e.ImageID] {
				seen[e.ImageID] = true
				resp.Images++
				resp.Bytes += e.Size
			}
		}
		return resp, nil
	})
}

// removedKeys converts entries, sorted by reference and target.
func (s *Server) removedKeys(entries []imagepin.Entry) []*api.Key {
	keys := make([]*api.Key, len(entries))
	for i, e := range entries {
		keys[i] = s.key(e)
	}
	slices.SortFunc(keys, func(a, b *api.Key) int {
		return cmp.Or(
			cmp.Compare(a.Ref, b.Ref), cmp.Compare(a.GetTarget().GetPlatform(), b.GetTarget().GetPlatform()),
			cmp.Compare(a.GetTarget().GetSnapshotter(), b.GetTarget().GetSnapshotter()),
		)
	})
	return keys
}
