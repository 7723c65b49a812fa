package stock

import (
	"encoding/json"
	"errors"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestImageOfAContainer checks the image that the CRI reports for containers: the name by which the caller created the
// container, as crictl does, or the image ID, as kubelet does.
func TestImageOfAContainer(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		t.Parallel()
		r := testkit.NewRig(t, node.Options{Binary: binary})
		ref, byDigest := r.Push("app:v1", images.Options{}, images.HostPlatform())
		id := r.MustPull(ref, "")
		pod := r.MustPod("")
		type names struct{ image, user string }
		created := make(map[string]names) // container → what the caller sent
		for _, n := range []names{{ref, ""}, {id, ref}, {id, ""}, {byDigest, ""}} {
			c, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: n.image, UserImage: n.user})
			if err != nil {
				t.Fatal(err)
			}
			created[c.ID] = n
		}
		check := func(call string, listed []*cri.Container) {
			t.Helper()
			if len(listed) != len(created) {
				t.Errorf("%s: got %d containers, want %d", call, len(listed), len(created))
			}
			for _, c := range listed {
				n := created[c.GetId()]
				if want := (&cri.ImageSpec{Image: n.image, UserSpecifiedImage: n.user}); !proto.Equal(c.GetImage(), want) || c.GetImageRef() != id {
					t.Errorf("%s: container of %v: got image %v and reference %q, want %v and %q", call, n, c.GetImage(), c.GetImageRef(), want, id)
				}
			}
		}
		list := func(call string) {
			t.Helper()
			resp, err := r.Runtime().ListContainers(r.Ctx, &cri.ListContainersRequest{})
			if err != nil {
				t.Fatal(err)
			}
			check(call, resp.GetContainers())
		}
		list("ListContainers")
		check("StreamContainers", streamed(t, r))
		for c, n := range created {
			resp, err := r.Runtime().ContainerStatus(r.Ctx, &cri.ContainerStatusRequest{ContainerId: c, Verbose: true})
			if err != nil {
				t.Fatal(err)
			}
			var info struct{ Config cri.ContainerConfig }
			if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
				t.Fatal(err)
			}
			if sent := (&cri.ImageSpec{Image: n.image, UserSpecifiedImage: n.user}); !proto.Equal(info.Config.GetImage(), sent) {
				t.Errorf("verbose status of a container of %v: got image %v, want %v", n, info.Config.GetImage(), sent)
			}
			got, want := resp.GetStatus(), &cri.ImageSpec{Image: ref}
			if !proto.Equal(got.GetImage(), want) || got.GetImageRef() != byDigest || got.GetImageId() != id {
				t.Errorf("status of a container of %v: got image %v, reference %q and ID %q, want %v, %q and %q",
					n, got.GetImage(), got.GetImageRef(), got.GetImageId(), want, byDigest, id)
			}
		}
		if err := r.Restart(r.Ctx, nil); err != nil {
			t.Fatal(err)
		}
		list("ListContainers after a restart")
	})
}

func streamed(t *testing.T, r *testkit.Rig) (all []*cri.Container) {
	t.Helper()
	stream, err := r.Runtime().StreamContainers(r.Ctx, &cri.StreamContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, resp.GetContainers()...)
	}
}
