package cri

import (
	"context"
	"fmt"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/running"
)

// RunningContainers returns the running containers of the node, with their own images.
func (s *Service) RunningContainers(ctx context.Context) ([]running.Container, error) {
	return s.containers.running(ctx)
}

// RunningImages is [Service.RunningContainers], with the image volumes of each container after it.
func (s *Service) RunningImages(ctx context.Context) ([]running.Container, error) {
	containers, err := s.containers.running(ctx)
	if err != nil {
		return nil, err
	}
	var all []running.Container
	for _, c := range containers {
		volumes, err := s.containers.runningVolumes(ctx, c)
		if err != nil {
			return nil, err
		}
		all = append(append(all, c), volumes...)
	}
	return all, nil
}

func (s *containers) running(ctx context.Context) ([]running.Container, error) {
	sandboxes, err := s.runtimes.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list running containers: %w", err)
	}
	containers, err := s.runtimes.ListContainers(ctx, &runtime.ListContainersRequest{
		Filter: &runtime.ContainerFilter{State: &runtime.ContainerStateValue{State: runtime.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return nil, fmt.Errorf("list running containers: %w", err)
	}
	pods := make(map[string]*runtime.PodSandbox)
	for _, sb := range sandboxes.GetItems() {
		pods[sb.GetId()] = sb
	}
	var all []running.Container
	for _, c := range containers.GetContainers() {
		pod := pods[c.GetPodSandboxId()]
		container := running.Container{
			ID: c.GetId(), Name: c.GetMetadata().GetName(), Pod: newPod(pod), Handler: pod.GetRuntimeHandler(),
			CreatedAt: time.Unix(0, c.GetCreatedAt()), Ref: requestedRef(c.GetImage()),
		}
		for _, name := range []string{c.GetImageId(), c.GetImageRef()} {
			if id, err := digest.Parse(name); err == nil {
				container.ImageID = id
			} else if found := s.Store.Find(name); len(found) > 0 {
				container.ImageID = found[0].ImageID
			}
		}
		all = append(all, container)
	}
	return all, nil
}

// requestedRef returns the normalized reference by which a pod names an image, or "" if it names it by its ID.
func requestedRef(spec *runtime.ImageSpec) string {
	for _, name := range []string{specifiedBy(spec), spec.GetImage()} {
		if _, err := digest.Parse(name); name != "" && err != nil {
			return normalized(name)
		}
	}
	return ""
}

// runningVolumes returns the image volumes of a container.
func (s *containers) runningVolumes(ctx context.Context, c running.Container) ([]running.Container, error) {
	mounts, err := s.imageMounts(ctx, c.ID)
	var all []running.Container
	for _, m := range mounts {
		volume := c
		volume.Volume, volume.Ref, volume.ImageID = m.GetContainerPath(), requestedRef(m.GetImage()), s.mountedID(m.GetImage().GetImage())
		all = append(all, volume)
	}
	return all, err
}

// mountedID returns the ID of the image of an image volume, or "" if it is not known: a tag can have moved since the image was mounted,
// if the container was created without imagepin.
func (s *containers) mountedID(name string) digest.Digest {
	if id, err := digest.Parse(name); err == nil {
		return id
	}
	named, err := reference.ParseDockerRef(name)
	if _, ok := named.(reference.Digested); err != nil || !ok {
		return ""
	}
	if found := s.Store.Find(name); len(found) > 0 {
		return found[0].ImageID
	}
	return ""
}
