package pull

import (
	"testing"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestContainerEvents reads the events of containers, as kubelet with EventedPLEG does. They have the images that ContainerStatus returns,
// also for another platform.
func TestContainerEvents(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}})
	tag, byDigest := r.Push("app:v1", images.Options{}, images.HostPlatform(), testkit.Foreign)
	events, err := r.Runtime().GetContainerEvents(r.Ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, handler := range []string{"", "foreign"} {
		id := r.MustPull(tag, handler)
		c, _, err := r.RunContainer(r.Ctx, r.MustPod(handler), node.ContainerOptions{Image: id, UserImage: tag})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := r.Runtime().ContainerStatus(r.Ctx, &cri.ContainerStatusRequest{ContainerId: c.ID})
		if err != nil {
			t.Fatal(err)
		}
		want := resp.GetStatus()
		if want.GetImage().GetImage() != tag || want.GetImageRef() != byDigest {
			t.Errorf("handler %q: the status has image %v and reference %s, want %s and %s", handler, want.GetImage(), want.GetImageRef(), tag, byDigest)
		}
		got := statusOf(t, events, c.ID)
		if !proto.Equal(got.GetImage(), want.GetImage()) || got.GetImageRef() != want.GetImageRef() || got.GetImageId() != want.GetImageId() {
			t.Errorf("handler %q: the event has image %v, reference %s and ID %s, want %v, %s and %s", handler,
				got.GetImage(), got.GetImageRef(), got.GetImageId(), want.GetImage(), want.GetImageRef(), want.GetImageId())
		}
	}
}

// statusOf waits for the event of the start of a container. It returns the status of the container in the event.
func statusOf(t *testing.T, events cri.RuntimeService_GetContainerEventsClient, id string) *cri.ContainerStatus {
	t.Helper()
	for {
		e, err := events.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetContainerId() != id || e.GetContainerEventType() != cri.ContainerEventType_CONTAINER_STARTED_EVENT {
			continue
		}
		for _, status := range e.GetContainersStatuses() {
			if status.GetId() == id {
				return status
			}
		}
		t.Fatalf("the event has no status of container %s: %v", id, e)
	}
}
