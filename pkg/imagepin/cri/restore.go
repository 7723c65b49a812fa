package cri

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// restorePod makes the sandbox image and the images of all containers ready before upstream restores a pod from a checkpoint, as
// RunPodSandbox and CreateContainer do. The pins of the pod decide the digests.
func (s *containers) restorePod(ctx context.Context, r *runtime.RestorePodRequest, next func(context.Context, *runtime.RestorePodRequest) (*runtime.RestorePodResponse, error)) (*runtime.RestorePodResponse, error) {
	handler := r.GetRuntimeHandler()
	rt, err := s.lookup(handler)
	if err != nil {
		return nil, err
	}
	made := s.newSandbox(ctx, handler, r.GetConfig())
	resp, err := func() (*runtime.RestorePodResponse, error) {
		if s.needsSandboxImage(rt) {
			release, err := s.readySandboxImage(ctx, handler)
			if err != nil {
				return nil, err
			}
			release() // not held below: images are locked in one step, so that two calls do not wait for each other
		}
		configs, release, err := s.readyImages(ctx, r.GetContainerConfigs(), made.pod, rt)
		if err != nil {
			return nil, err
		}
		defer release()
		r := proto.CloneOf(r)
		r.ContainerConfigs = configs
		return next(ctx, r)
	}()
	s.finishSandbox(made, resp.GetPodSandboxId(), err)
	return resp, err
}
