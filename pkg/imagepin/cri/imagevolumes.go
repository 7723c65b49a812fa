package cri

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageVolumes returns the images of a container's image volumes, as CreateContainer named them. It returns none for a
// container that has been removed.
//
// Only ContainerStatus reports mounts, and upstream reads the container's record and runtime spec for each answer. Do
// not call imageVolumes if the list of containers is sufficient.
func (s *base) imageVolumes(ctx context.Context, container string) ([]*runtime.ImageSpec, error) {
	resp, err := s.runtimes.ContainerStatus(untraced(ctx), &runtime.ContainerStatusRequest{ContainerId: container})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("image volumes of container %s: %w", container, err)
	}
	var images []*runtime.ImageSpec
	for _, m := range resp.GetStatus().GetMounts() {
		if spec := m.GetImage(); spec.GetImage() != "" {
			images = append(images, spec)
		}
	}
	return images, nil
}
