package cri

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// growingUpstream is a CRI service that lists a container of an image once it is created.
type growingUpstream struct {
	emptyUpstream
	image   string
	created bool
}

func (u *growingUpstream) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest, ...grpc.CallOption) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: []*runtime.PodSandbox{{Id: adoptedSandbox, RuntimeHandler: "runc"}}}, nil
}

func (u *growingUpstream) ListContainers(context.Context, *runtime.ListContainersRequest, ...grpc.CallOption) (*runtime.ListContainersResponse, error) {
	if !u.created {
		return &runtime.ListContainersResponse{}, nil
	}
	return &runtime.ListContainersResponse{Containers: []*runtime.Container{{Id: "container", PodSandboxId: adoptedSandbox, ImageRef: u.image}}}, nil
}

func (u *growingUpstream) ContainerStatus(context.Context, *runtime.ContainerStatusRequest, ...grpc.CallOption) (*runtime.ContainerStatusResponse, error) {
	return &runtime.ContainerStatusResponse{Status: &runtime.ContainerStatus{Id: "container"}}, nil
}

// TestPruneLooksAgain prunes while CreateContainer of an unused image is in progress. Prune lists what is used before the
// container exists, then waits for CreateContainer, and must not remove the image that the container uses now.
func TestPruneLooksAgain(t *testing.T) {
	a := newAdoptedNode(t)
	u := &growingUpstream{image: a.img.Config.Digest.String()}
	a.base.runtimes = u
	synctest.Test(t, func(t *testing.T) {
		answer, created := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := a.containers.createContainer(t.Context(), &runtime.CreateContainerRequest{
				PodSandboxId: adoptedSandbox, Config: &runtime.ContainerConfig{Image: &runtime.ImageSpec{Image: adoptedTag}},
			}, func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
				<-answer
				u.created = true
				return &runtime.CreateContainerResponse{ContainerId: "container"}, nil
			})
			created <- err
		}()
		synctest.Wait() // upstream creates the container
		type pruned struct {
			entries []imagepin.Entry
			err     error
		}
		done := make(chan pruned, 1)
		future := time.Now().AddDate(100, 0, 0)
		go func() {
			entries, err := a.Prune(t.Context(), PruneOptions{Before: future})
			done <- pruned{entries, err}
		}()
		synctest.Wait() // Prune waits for the lock of the image
		if len(done) > 0 {
			t.Fatalf("Prune did not wait for CreateContainer: %+v", <-done)
		}
		close(answer)
		noError(t, <-created)
		got := <-done
		if got.err != nil || len(got.entries) > 0 || !a.complete(t) {
			t.Errorf("Prune removed %v, %v", got.entries, got.err)
		}
		u.created = false
		entries, err := a.Prune(t.Context(), PruneOptions{Before: future})
		if err != nil || len(entries) != 1 || len(a.base.Store.ByRef(adoptedTag)) > 0 {
			t.Errorf("Prune without the container removed %v, %v", entries, err)
		}
	})
}
