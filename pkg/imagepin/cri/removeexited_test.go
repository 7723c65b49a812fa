package cri

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// podsUpstream is a CRI service with containers and sandboxes.
type podsUpstream struct {
	emptyUpstream
	sandboxes  []*runtime.PodSandbox
	containers []*runtime.Container
	removed    []string
	fails      string // the ID that cannot be removed
}

func (u *podsUpstream) ContainerStatus(context.Context, *runtime.ContainerStatusRequest, ...grpc.CallOption) (*runtime.ContainerStatusResponse, error) {
	return &runtime.ContainerStatusResponse{}, nil
}

func (u *podsUpstream) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest, ...grpc.CallOption) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: u.sandboxes}, nil
}

func (u *podsUpstream) ListContainers(context.Context, *runtime.ListContainersRequest, ...grpc.CallOption) (*runtime.ListContainersResponse, error) {
	return &runtime.ListContainersResponse{Containers: u.containers}, nil
}

func (u *podsUpstream) remove(id string) error {
	if id == u.fails {
		return errdefs.ErrUnavailable
	}
	u.removed = append(u.removed, id)
	return nil
}

func (u *podsUpstream) RemoveContainer(_ context.Context, r *runtime.RemoveContainerRequest, _ ...grpc.CallOption) (*runtime.RemoveContainerResponse, error) {
	return &runtime.RemoveContainerResponse{}, u.remove(r.GetContainerId())
}

func (u *podsUpstream) RemovePodSandbox(_ context.Context, r *runtime.RemovePodSandboxRequest, _ ...grpc.CallOption) (*runtime.RemovePodSandboxResponse, error) {
	return &runtime.RemovePodSandboxResponse{}, u.remove(r.GetPodSandboxId())
}

// TestRemoveExited has pods whose sandboxes and containers stand on a damaged snapshot, or on another one.
func TestRemoveExited(t *testing.T) {
	a := newAdoptedNode(t)
	ctx, done := a.Lease(t)
	defer done()
	sn := a.Snapshotter("first")
	const low, damaged, other = "sha256:low", "sha256:damaged", "sha256:other"
	for _, s := range [][2]string{{low, ""}, {damaged, low}, {other, low}} {
		_, err := sn.Prepare(ctx, "extract", s[1])
		noError(t, err)
		noError(t, sn.Commit(ctx, s[0], "extract"))
	}
	u := &podsUpstream{}
	pod := func(id string, ready runtime.PodSandboxState, on string) {
		u.sandboxes = append(u.sandboxes, &runtime.PodSandbox{Id: id, State: ready, Metadata: &runtime.PodSandboxMetadata{Namespace: "shop", Name: "pod-" + id}})
		_, err := sn.Prepare(ctx, id, on)
		noError(t, err)
	}
	container := func(id, pod string, state runtime.ContainerState, on string) {
		u.containers = append(u.containers, &runtime.Container{Id: id, PodSandboxId: pod, State: state, Metadata: &runtime.ContainerMetadata{Name: "app"}})
		_, err := sn.Prepare(ctx, id, on)
		noError(t, err)
	}
	const ready, stopped = runtime.PodSandboxState_SANDBOX_READY, runtime.PodSandboxState_SANDBOX_NOTREADY
	const running, created, exited, unknown = runtime.ContainerState_CONTAINER_RUNNING, runtime.ContainerState_CONTAINER_CREATED, runtime.ContainerState_CONTAINER_EXITED, runtime.ContainerState_CONTAINER_UNKNOWN
	pod("live", ready, other)
	container("live-exited", "live", exited, damaged)
	container("live-running", "live", running, damaged)
	container("live-created", "live", created, damaged)
	container("live-unknown", "live", unknown, damaged)
	container("live-other", "live", exited, other)
	pod("dead", stopped, damaged)
	container("dead-other", "dead", exited, other)
	container("dead-exited", "dead", exited, damaged)
	pod("half", stopped, damaged) // its container runs on
	container("half-running", "half", running, other)
	container("half-exited", "half", exited, damaged)
	pod("elsewhere", stopped, other)
	a.base.runtimes = u

	users, err := a.SnapshotUsers(t.Context())
	noError(t, err)
	var names []string
	for _, user := range users {
		names = append(names, user.Snapshot)
	}
	if want := []string{"live-running", "live-created", "live-unknown", "half-running", "live"}; !slices.Equal(names, want) || users[0].Name != "container app of pod shop/pod-live" || users[4].Name != "the sandbox of pod shop/pod-live" {
		t.Errorf("users are %+v, want %q", users, want)
	}

	e := imagepin.Entry{Key: imagepin.Key{Target: runtimeplatform.Target{Snapshotter: "first"}}, ChainID: damaged}
	if removed, err := a.RemoveExited(t.Context(), e, damaged); len(removed)+len(u.removed) > 0 || !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "container app of pod shop/pod-live") {
		t.Errorf("while containers run: got %q, %v, removed %q, want SnapshotInUse", removed, err, u.removed)
	}
	u.containers = slices.DeleteFunc(u.containers, func(c *runtime.Container) bool {
		return c.GetPodSandboxId() == "live" && c.GetState() != exited
	})
	u.fails = "half-exited"
	removed, err := a.RemoveExited(t.Context(), e, damaged)
	if !errdefs.IsUnavailable(err) || len(removed) != 4 {
		t.Errorf("got %q, %v, want what was removed before the failure", removed, err)
	}
	u.fails, u.removed = "", nil
	removed, err = a.RemoveExited(t.Context(), e, damaged)
	want := []string{
		"container app of pod shop/pod-dead (dead-other)", "container app of pod shop/pod-dead (dead-exited)", "the sandbox of pod shop/pod-dead (dead)",
		"container app of pod shop/pod-live (live-exited)", "container app of pod shop/pod-half (half-exited)",
	}
	if err != nil || !slices.Equal(removed, want) || !slices.Equal(u.removed, []string{"dead", "live-exited", "half-exited"}) {
		t.Errorf("got %q, %v, want %q; removed %q", removed, err, want, u.removed)
	}
}

// TestDamagedSnapshotIsNamed checks that CreateContainer and RunPodSandbox fail with the error of a damaged snapshot that cannot be
// repaired.
func TestDamagedSnapshotIsNamed(t *testing.T) {
	v := newVerifyingNode(t, policy.Off)
	for _, reason := range []imagepin.Reason{imagepin.SnapshotInUse, imagepin.SnapshotNotReplaceable} {
		cause := &imagepin.Error{Reason: reason, Class: errdefs.ErrFailedPrecondition, Hint: "drain"}
		err := v.containers.notReadyError(cause, adoptedTag, runtimeplatform.Target{}, "files are damaged")
		var got *imagepin.Error
		if !errors.As(err, &got) || got.Reason != reason || got.Hint != "drain" {
			t.Errorf("got %v, want %v", err, cause)
		}
	}
}
