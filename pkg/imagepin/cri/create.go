package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// namesPoll is how often the names that upstream knows are compared with the records, which reads their manifests.
const namesPoll = 5 * time.Millisecond

// createFunc is upstream's CreateContainer.
type createFunc func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error)

// createFromImages creates a container upstream from images that are ready. Upstream reads an image by the first name
// that it knows for the image ID, which is a tag if there is one (see package upstream). It learns from events that a tag has been
// moved or removed. Until then, it fails or creates the container from the snapshot of another image. createFromImages then removes the container,
// waits until upstream knows the names, and tries again. It fails with UpstreamNotSynced (ErrUnavailable) if upstream
// does not learn them in time.
func (s *containers) createFromImages(ctx context.Context, r *runtime.CreateContainerRequest, t runtimeplatform.Target, next createFunc) (*runtime.CreateContainerResponse, error) {
	again := false // a call has failed although upstream knows the names
	for range maxTries {
		resp, err := next(ctx, r)
		switch {
		case err == nil:
			right, uerr := s.usesImage(ctx, resp.GetContainerId(), r, t)
			if uerr == nil && right {
				return resp, nil
			}
			if err := errors.Join(uerr, s.removeCreated(ctx, resp.GetContainerId())); err != nil {
				return nil, err
			}
		case status.Code(err) != codes.NotFound:
			return nil, err
		}
		waited, werr := s.waitForNames(ctx, r)
		if werr != nil {
			return nil, werr
		}
		if err != nil && !waited {
			if again {
				return nil, err // it does not come from the names
			}
			again = true // a record may have been created again since
		}
	}
	return nil, fmt.Errorf("the tags of the container's images kept moving while it was created: %w", errdefs.ErrUnavailable)
}

// usesImage reports whether a container that was just created uses the snapshot of its image.
func (s *containers) usesImage(ctx context.Context, id string, r *runtime.CreateContainerRequest, t runtimeplatform.Target) (bool, error) {
	images := s.Store.ByID(digest.Digest(r.GetConfig().GetImage().GetImage()))
	if len(images) == 0 {
		return true, nil // upstream alone knows the image
	}
	ctx = s.namespaced(ctx)
	snapshotter := s.Snapshotter(t.Snapshotter)
	info, err := snapshotter.Stat(ctx, id)
	if errdefs.IsNotFound(err) {
		return true, nil // the container has no snapshot of its own
	}
	want := images[0].ChainID.String() // it follows from the image ID
	if err == nil && info.Parent != want && hasUserNamespace(r) {
		// The container's snapshot may be on a copy with other owners (WithUserNSRemappedSnapshot in containerd's client).
		info, err = snapshotter.Stat(ctx, info.Parent)
	}
	if err != nil {
		return false, fmt.Errorf("snapshot of container %s: %w", id, err)
	}
	return info.Parent == want, nil
}

func hasUserNamespace(r *runtime.CreateContainerRequest) bool {
	options := r.GetSandboxConfig().GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	return options != nil && options.GetMode() == runtime.NamespaceMode_POD
}

// removeCreated removes a container that no caller knows.
func (s *containers) removeCreated(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), visibleTimeout)
	defer cancel()
	if _, err := s.runtimes.RemoveContainer(ctx, &runtime.RemoveContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("remove container %s of another image: %w", id, err)
	}
	return nil
}

// waitForNames waits until upstream knows the current records of a container's images. waited is false if it did.
func (s *containers) waitForNames(ctx context.Context, r *runtime.CreateContainerRequest) (waited bool, _ error) {
	ctx, cancel := context.WithTimeoutCause(untraced(ctx), visibleTimeout, errUpstreamNotSynced)
	defer cancel()
	tick := time.NewTicker(namesPoll)
	defer tick.Stop()
	for _, spec := range imageSpecs(r.GetConfig()) {
		for {
			name, err := s.outdatedName(ctx, spec.GetImage())
			if err == nil && name == "" {
				break
			}
			waited = true
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
			}
			if cause := context.Cause(ctx); !errors.Is(cause, errUpstreamNotSynced) {
				return waited, cause
			}
			return waited, notSynced(name, err)
		}
	}
	return waited, nil
}

// outdatedName returns a name by which upstream knows an image although the record with this name is gone or belongs to
// another image. It returns "" if there is none.
func (s *containers) outdatedName(ctx context.Context, id string) (string, error) {
	resp, err := s.images.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: id}})
	if err != nil {
		return "", err
	}
	ctx = s.namespaced(ctx)
	for _, name := range slices.Concat(resp.GetImage().GetRepoTags(), resp.GetImage().GetRepoDigests()) {
		record, err := s.Records.Get(ctx, name)
		if err != nil && !errdefs.IsNotFound(err) {
			return "", err
		}
		if err != nil {
			return name, nil
		}
		config, err := record.Config(ctx, s.Content, platforms.Default())
		if err != nil || config.Digest.String() != resp.GetImage().GetId() {
			return name, nil
		}
	}
	return "", nil
}

// notSynced returns the error for a name that upstream did not learn in time.
func notSynced(name string, err error) error {
	return &imagepin.Error{
		Reason: imagepin.UpstreamNotSynced, Class: errdefs.ErrUnavailable, Err: err,
		Message: fmt.Sprintf("containerd's CRI service did not pick up %s within %s", name, visibleTimeout),
		Hint:    "Try again. If the error persists, look for event handling errors in containerd's log.",
	}
}
