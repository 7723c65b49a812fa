package cri

import (
	"context"
	"slices"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

func (s *containers) containerStatus(ctx context.Context, r *runtime.ContainerStatusRequest, next func(context.Context, *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error)) (*runtime.ContainerStatusResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	restoreInfo(resp.GetInfo())
	s.correct(resp.GetStatus())
	return resp, nil
}

// containerEvents corrects the images of the containers in events, as ContainerStatus does. kubelet with the feature gate EventedPLEG
// takes them in place of its calls of ContainerStatus. The stream does not end by itself, so a retirement does not wait for it.
func (s *Service) containerEvents(stream grpc.ServerStream) error {
	return relay(stream, s.base.runtimes.GetContainerEvents, func(resp *runtime.ContainerEventResponse) error {
		leave, ok := s.retirement.enter()
		if !ok {
			return nil
		}
		defer leave()
		return s.correctAll(stream.Context(), resp.GetContainersStatuses())
	})
}

// podSandboxStatus corrects the images of the sandbox's containers, as ContainerStatus does.
func (s *Service) podSandboxStatus(ctx context.Context, r *runtime.PodSandboxStatusRequest, next func(context.Context, *runtime.PodSandboxStatusRequest) (*runtime.PodSandboxStatusResponse, error)) (*runtime.PodSandboxStatusResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp, s.correctAll(ctx, resp.GetContainersStatuses())
}

// correctAll is [containers.correct] when the index is built.
func (s *Service) correctAll(ctx context.Context, all []*runtime.ContainerStatus) error {
	if len(all) == 0 {
		return nil
	}
	return s.whenReady(ctx, func() error {
		for _, status := range all {
			s.containers.correct(status)
		}
		return nil
	})
}

// correct corrects the images in the status of a container: upstream reports the image ID in place of the name in the request.
// For a foreign platform it does not know the image's tag, and reports a digest other than the one that the registry
// returned for the reference.
func (s *containers) correct(status *runtime.ContainerStatus) {
	defer restoreStatus(status)
	s.setVolumeRefs(status)
	entries := s.Store.ByID(imageID(status))
	if !slices.ContainsFunc(entries, s.foreign) {
		return
	}
	var tags, digests []string
	for _, e := range entries {
		if isDigested(e.Ref) {
			digests = append(digests, e.Ref)
		} else {
			tags = append(tags, e.Ref)
		}
	}
	if requested := normalized(specifiedBy(status.GetImage())); slices.Contains(tags, requested) {
		tags = []string{requested}
	}
	if len(tags) > 0 && status.Image != nil {
		status.Image = &runtime.ImageSpec{Image: tags[0]}
	}
	if len(digests) > 0 {
		status.ImageRef = digests[0]
	}
}

// restoreStatus replaces the image ID of a container by the name in the request. The status of an image volume keeps the ID of the image
// that is mounted, beside the name: kubelet looks it up for the pod's volumeMounts[].volumeStatus.image.imageRef
// (https://kep.k8s.io/5365), its garbage collection compares it with the images, and a tag can have moved since.
func restoreStatus(status *runtime.ContainerStatus) {
	restoreName(status.GetImage())
	for _, m := range status.GetMounts() {
		forgetOwnAnnotations(m.GetImage())
	}
}

// imageID returns the ID of a container's image, or "" if upstream does not report it. containerd 2.2 reports it only
// if it knows no tag of the image.
func imageID(status *runtime.ContainerStatus) digest.Digest {
	for _, name := range []string{status.GetImageId(), status.GetImage().GetImage()} {
		if id, err := digest.Parse(name); err == nil {
			return id
		}
	}
	return ""
}

// foreign reports whether an entry is for a platform other than the node's own.
func (s *containers) foreign(e imagepin.Entry) bool {
	rt, ok := s.Runtimes().ForTarget(e.Target)
	return ok && !rt.Native
}
