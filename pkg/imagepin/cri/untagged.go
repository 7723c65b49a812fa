package cri

import (
	"context"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoveUntagged removes images that have no key, whose records were last written before the given time, and that no
// container or image volume of the node uses.
func (s *Service) RemoveUntagged(ctx context.Context, before time.Time) error {
	return s.remover.removeUntagged(ctx, before)
}

func (s *remover) removeUntagged(ctx context.Context, before time.Time) error {
	all := s.Store.Unkeyed()
	if len(all) == 0 {
		return nil
	}
	used, err := s.imagesInUse(ctx)
	if err != nil {
		return err
	}
	collect := false
	for _, id := range all {
		if used[id] {
			continue
		}
		removed, err := s.Store.RemoveUntagged(s.namespaced(ctx), id, before)
		if err != nil {
			return err
		}
		collect = collect || removed
	}
	if !collect {
		return nil
	}
	return s.collect(ctx)
}

// imagesInUse returns the IDs of the images of the node's containers and of their image volumes.
func (s *remover) imagesInUse(ctx context.Context) (map[digest.Digest]bool, error) {
	resp, err := s.runtimes.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images in use: %w", err)
	}
	used := make(map[digest.Digest]bool)
	for _, c := range resp.GetContainers() {
		names := []string{c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage()}
		volumes, err := s.imageVolumes(ctx, c.GetId())
		if err != nil {
			return nil, fmt.Errorf("list images in use: %w", err)
		}
		for _, v := range volumes {
			names = append(names, v.GetImage())
		}
		for _, name := range names {
			if id, err := digest.Parse(name); err == nil {
				used[id] = true
			}
		}
	}
	return used, nil
}
