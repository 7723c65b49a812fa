package cri

import (
	"context"
	"slices"

	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// containerStatus corrects the image of a container of a foreign platform: upstream does not know its tag, and reports
// a digest other than the one that the registry returned for the reference.
func (s *containers) containerStatus(ctx context.Context, r *runtime.ContainerStatusRequest, next func(context.Context, *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error)) (*runtime.ContainerStatusResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	status := resp.GetStatus()
	entries := s.Store.ByID(imageID(status))
	if !slices.ContainsFunc(entries, s.foreign) {
		return resp, nil
	}
	var tags, digests []string
	for _, e := range entries {
		if isDigested(e.Ref) {
			digests = append(digests, e.Ref)
		} else {
			tags = append(tags, e.Ref)
		}
	}
	if requested := normalized(status.GetImage().GetUserSpecifiedImage()); slices.Contains(tags, requested) {
		tags = []string{requested}
	}
	if len(tags) > 0 && status.Image != nil {
		status.Image.Image = tags[0]
	}
	if len(digests) > 0 {
		status.ImageRef = digests[0]
	}
	return resp, nil
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
