package cri

import (
	"context"
	"fmt"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/replace"
)

// SnapshotUsers returns the containers that have not exited, and the sandboxes that are ready, with their snapshots. containerd's
// CRI gives the snapshot of a container or a sandbox its ID as name.
func (s *Service) SnapshotUsers(ctx context.Context) ([]replace.User, error) {
	running, _, err := s.containers.onSnapshots(ctx)
	return running, err
}

// onSnapshots returns what the node has of containers and sandboxes: those that may run, now or later, and those that have
// exited. Each exited sandbox comes after its containers.
func (s *containers) onSnapshots(ctx context.Context) (running, exited []replace.User, _ error) {
	sandboxes, err := s.runtimes.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := s.runtimes.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("list containers: %w", err)
	}
	pods := make(map[string]string)
	for _, sb := range sandboxes.GetItems() {
		pods[sb.GetId()] = sb.GetMetadata().GetNamespace() + "/" + sb.GetMetadata().GetName()
	}
	for _, c := range containers.GetContainers() {
		u := replace.User{
			Snapshot: c.GetId(), Pod: c.GetPodSandboxId(), Name: "container " + c.GetMetadata().GetName() + " of pod " + pods[c.GetPodSandboxId()],
		}
		if c.GetState() == runtime.ContainerState_CONTAINER_EXITED {
			exited = append(exited, u)
			continue
		}
		running = append(running, u)
	}
	for _, sb := range sandboxes.GetItems() {
		u := replace.User{Snapshot: sb.GetId(), Name: "the sandbox of pod " + pods[sb.GetId()], Pod: sb.GetId()}
		if sb.GetState() == runtime.PodSandboxState_SANDBOX_NOTREADY {
			exited = append(exited, u)
			continue
		}
		running = append(running, u)
	}
	return running, exited, nil
}
