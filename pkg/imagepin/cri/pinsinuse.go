package cri

import (
	"context"
	"fmt"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// PinsInUse returns the pins that are in use: the pins of the node's containers, in any state, and all pins of a
// workload that has a ready pod sandbox, because its containers may be created later.
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
	ready := make(map[policy.Scope]bool)
	for _, sb := range sandboxes.GetItems() {
		pod := s.Decider.WithKnownOwner(newPod(sb))
		pods[sb.GetId()] = pod
		if sb.GetState() == runtime.PodSandboxState_SANDBOX_READY {
			for _, scope := range s.Decider.Scopes(pod) {
				ready[scope] = scope != policy.NodeScope
			}
		}
	}
	used := make(map[pin.ID]bool)
	for _, p := range s.Pins.List() {
		if ready[p.Scope] {
			used[p.ID] = true
		}
	}
	for _, c := range containers.GetContainers() {
		names := []string{c.GetImage().GetUserSpecifiedImage()}
		for _, e := range s.Store.Find(c.GetImageRef()) {
			names = append(names, e.Ref)
		}
		for _, name := range names {
			ref, err := imagepin.ParseReference(name)
			if err != nil {
				continue
			}
			d, _ := s.Decider.EffectivePolicy(ref.String(), pods[c.GetPodSandboxId()])
			used[pin.ID{Scope: d.Scope, Ref: ref.String()}] = true
		}
	}
	return used, nil
}
