package cri

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunningContainer is a running container.
type RunningContainer struct {
	Namespace, Pod, Name string
	// Ref is the normalized reference by which the pod names the image. It is empty if the pod names it by its ID.
	Ref     string
	ImageID digest.Digest
}

// RunningContainers returns the running containers of the node, with their images.
func (s *Service) RunningContainers(ctx context.Context) ([]RunningContainer, error) {
	return s.containers.running(ctx)
}

func (s *containers) running(ctx context.Context) ([]RunningContainer, error) {
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
	pods := make(map[string]*runtime.PodSandboxMetadata)
	for _, sb := range sandboxes.GetItems() {
		pods[sb.GetId()] = sb.GetMetadata()
	}
	var all []RunningContainer
	for _, c := range containers.GetContainers() {
		pod := pods[c.GetPodSandboxId()]
		running := RunningContainer{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Name: c.GetMetadata().GetName()}
		for _, name := range []string{c.GetImageId(), c.GetImageRef()} {
			if id, err := digest.Parse(name); err == nil {
				running.ImageID = id
			} else if found := s.Store.Find(name); len(found) > 0 {
				running.ImageID = found[0].ImageID
			}
		}
		for _, name := range []string{specifiedBy(c.GetImage()), c.GetImage().GetImage()} {
			if _, err := digest.Parse(name); name != "" && err != nil && running.Ref == "" {
				running.Ref = normalized(name)
			}
		}
		all = append(all, running)
	}
	return all, nil
}
