package cri

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageVolumes returns the images of a container's image volumes, as CreateContainer named them. It returns none for a
// container that has been removed.
func (s *base) imageVolumes(ctx context.Context, container string) ([]*runtime.ImageSpec, error) {
	mounts, err := s.imageMounts(ctx, container)
	var images []*runtime.ImageSpec
	for _, m := range mounts {
		images = append(images, m.GetImage())
	}
	return images, err
}

// imageMounts is imageVolumes, with where they are mounted.
//
// Only ContainerStatus reports mounts, and upstream reads the container's record and runtime spec for each answer. Do
// not call imageMounts if the list of containers is sufficient.
func (s *base) imageMounts(ctx context.Context, container string) ([]*runtime.Mount, error) {
	resp, err := s.runtimes.ContainerStatus(untraced(ctx), &runtime.ContainerStatusRequest{ContainerId: container})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("image volumes of container %s: %w", container, err)
	}
	return slices.DeleteFunc(resp.GetStatus().GetMounts(), func(m *runtime.Mount) bool { return m.GetImage().GetImage() == "" }), nil
}
