package cri

import (
	"context"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	// useInterval is how old the recorded use of an image may be while it is used: a use writes nothing if a later one is recorded.
	useInterval = time.Hour
	// maxUses is of how many keys the exact time of the last use is in memory.
	maxUses = 10000
)

// noteUse notes that the image with an ID is used for a target. It does not fail: the image is only pruned earlier.
func (s *base) noteUse(ctx context.Context, id digest.Digest, t runtimeplatform.Target) {
	var keys []imagepin.Key
	for _, e := range s.Store.ByID(id) {
		if e.Target == t {
			keys = append(keys, e.Key)
			s.uses.Add(e.Key, time.Now())
		}
	}
	if err := s.Store.MarkUsed(s.namespaced(ctx), useInterval, keys...); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).WithField("image", id).Warn("failed to record the use of an image")
	}
}

// lastUse returns when an image was last used: to the hour if imagepin was restarted since.
func (s *base) lastUse(e imagepin.Entry) time.Time {
	last := e.LastUse()
	if at, ok := s.uses.Get(e.Key); ok && at.(time.Time).After(last) {
		return at.(time.Time)
	}
	return last
}

// removeContainer notes the end of the use of the container's images.
func (s *containers) removeContainer(ctx context.Context, r *runtime.RemoveContainerRequest, next func(context.Context, *runtime.RemoveContainerRequest) (*runtime.RemoveContainerResponse, error)) (*runtime.RemoveContainerResponse, error) {
	if r.GetContainerId() != "" { // an empty filter selects all
		s.noteEndOfUse(ctx, &runtime.ContainerFilter{Id: r.GetContainerId()})
	}
	return next(ctx, r)
}

// noteEndOfUse notes that the images of containers, which are about to be removed, are used until now.
func (s *containers) noteEndOfUse(ctx context.Context, which *runtime.ContainerFilter) {
	list, err := s.runtimes.ListContainers(untraced(ctx), &runtime.ListContainersRequest{Filter: which})
	if err != nil {
		return // the removal fails, too
	}
	for _, c := range list.GetContainers() {
		sandbox, err := s.sandboxes.byID(ctx, c.GetPodSandboxId())
		if err != nil || sandbox == nil {
			continue
		}
		rt, err := s.lookup(sandbox.handler)
		if err != nil {
			continue // the handler is not configured any more
		}
		volumes, err := s.imageVolumes(ctx, c.GetId())
		if err != nil {
			log.G(ctx).WithError(err).Warn("failed to note the use of image volumes")
		}
		s.noteUse(ctx, digest.Digest(c.GetImageRef()), rt.Target)
		for _, v := range volumes {
			s.noteUse(ctx, digest.Digest(v.GetImage()), rt.Target)
		}
	}
}
