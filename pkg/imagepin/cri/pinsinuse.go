package cri

import (
	"context"
	"fmt"
	"slices"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// PinsInUse returns the pins that are in use: the pins of the node's containers and of their image volumes, in any state
// of the container, and all pins of a workload that has a ready pod sandbox, because its containers may be created
// later.
func (s *Service) PinsInUse(ctx context.Context) (map[pin.ID]bool, error) {
	return s.containers.pinsInUse(ctx)
}

func (s *containers) pinsInUse(ctx context.Context) (map[pin.ID]bool, error) {
	sandboxes, err := s.runtimes.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pins in use: %w", err)
	}
	containers, err := s.runtimes.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pins in use: %w", err)
	}
	pods := make(map[string]policy.Pod)
	for _, sb := range sandboxes.GetItems() {
		pods[sb.GetId()] = s.Decider.WithKnownOwner(newPod(sb))
	}
	used := s.pinsOfReadySandboxes(sandboxes.GetItems(), pods)
	for _, c := range containers.GetContainers() {
		s.markPins(used, pods[c.GetPodSandboxId()], specifiedBy(c.GetImage()), c.GetImageRef())
	}
	if s.allUsed(used) {
		return used, nil // the image volumes, which cost a call for each container, make no difference
	}
	for _, c := range containers.GetContainers() {
		volumes, err := s.imageVolumes(ctx, c.GetId())
		if err != nil {
			return nil, fmt.Errorf("list pins in use: %w", err)
		}
		for _, v := range volumes {
			s.markPins(used, pods[c.GetPodSandboxId()], v.GetUserSpecifiedImage(), v.GetImage())
		}
	}
	return used, nil
}

// pinsOfReadySandboxes returns the pins of the workloads that have a ready sandbox. pods has the pods by sandbox.
func (s *containers) pinsOfReadySandboxes(sandboxes []*runtime.PodSandbox, pods map[string]policy.Pod) map[pin.ID]bool {
	ready := make(map[policy.Scope]bool)
	for _, sb := range sandboxes {
		if sb.GetState() != runtime.PodSandboxState_SANDBOX_READY {
			continue
		}
		for _, scope := range s.Decider.Scopes(pods[sb.GetId()]) {
			ready[scope] = scope != policy.NodeScope
		}
	}
	used := make(map[pin.ID]bool)
	for _, p := range s.Pins.List() {
		if ready[p.Scope] {
			used[p.ID] = true
		}
	}
	return used
}

// markPins marks the pins that a pod uses for an image: that of the reference by which the pod names the image, which
// may be empty, and those of the image's references on the node.
func (s *containers) markPins(used map[pin.ID]bool, pod policy.Pod, reference, image string) {
	names := []string{reference}
	for _, e := range s.Store.Find(image) {
		names = append(names, e.Ref)
	}
	for _, name := range names {
		ref, err := imagepin.ParseReference(name)
		if err != nil {
			continue
		}
		used[pin.ID{Scope: s.Decider.ScopeOf(ref.String(), pod), Ref: ref.String()}] = true
	}
}

// allUsed reports whether every pin of the node is marked as used.
func (s *containers) allUsed(used map[pin.ID]bool) bool {
	return !slices.ContainsFunc(s.Pins.List(), func(p pin.Pin) bool { return !used[p.ID] })
}
