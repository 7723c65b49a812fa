package cri

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/family"
	"github.com/imagepin/imagepin/pkg/imagepin/replace"
)

// RemoveExited removes the exited containers and the stopped sandboxes whose snapshots stand on the one with the chain ID from, which
// is one of an image's snapshots. It removes the containers of these sandboxes, too, and no sandbox with a container that has not
// exited. It returns what it has removed. Their logs and last status are gone then. It removes nothing and fails with SnapshotInUse
// (ErrFailedPrecondition) if something runs on the snapshot: the removal would be in vain.
func (s *Service) RemoveExited(ctx context.Context, e imagepin.Entry, from digest.Digest) (removed []string, _ error) {
	return s.containers.removeExited(ctx, e, from)
}

func (s *containers) removeExited(ctx context.Context, e imagepin.Entry, from digest.Digest) (removed []string, _ error) {
	running, exited, err := s.onSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	all, err := family.Of(s.namespaced(ctx), s.Snapshotter(e.Target.Snapshotter))
	if err != nil {
		return nil, fmt.Errorf("snapshotter %s: %w", e.Target.Snapshotter, err)
	}
	standing := func(u replace.User) bool { return all.StandsOn(u.Snapshot, from.String()) }
	var by []string
	for _, u := range running {
		if standing(u) {
			by = append(by, u.Name)
		}
	}
	if len(by) > 0 {
		return nil, replace.InUse(e, by...)
	}
	gone := make(map[string]bool) // pods
	for _, u := range exited {
		pod := func(o replace.User) bool { return o.Pod == u.Pod }
		if u.Snapshot != u.Pod || !standing(u) || slices.ContainsFunc(running, pod) {
			continue
		}
		_, err := s.removePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: u.Pod}, func(ctx context.Context, r *runtime.RemovePodSandboxRequest) (*runtime.RemovePodSandboxResponse, error) {
			return s.runtimes.RemovePodSandbox(ctx, r)
		})
		if err != nil {
			return removed, fmt.Errorf("remove %s: %w", u.Name, err)
		}
		gone[u.Pod] = true
		for _, o := range exited {
			if pod(o) {
				removed = append(removed, noteRemoved(ctx, o))
			}
		}
	}
	for _, u := range exited {
		if u.Snapshot == u.Pod || gone[u.Pod] || !standing(u) {
			continue
		}
		if _, err := s.runtimes.RemoveContainer(ctx, &runtime.RemoveContainerRequest{ContainerId: u.Snapshot}); err != nil {
			return removed, fmt.Errorf("remove %s: %w", u.Name, err)
		}
		removed = append(removed, noteRemoved(ctx, u))
	}
	return removed, nil
}

// noteRemoved logs the removal of a container or a sandbox, and describes it.
func noteRemoved(ctx context.Context, u replace.User) string {
	what := u.Name + " (" + u.Snapshot + ")"
	log.G(ctx).WithField("removed", what).Warn("removed for the repair of a damaged snapshot")
	return what
}
