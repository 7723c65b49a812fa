package cri

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// TestRestorePod restores a pod of two containers and an image volume. Upstream gets image IDs in place of names, and the images stay until
// it has answered. The calls that follow know the pod.
func TestRestorePod(t *testing.T) {
	a := newAdoptedNode(t)
	spec := func() *runtime.ImageSpec { return &runtime.ImageSpec{Image: adoptedTag} }
	r := &runtime.RestorePodRequest{
		Config:         &runtime.PodSandboxConfig{Metadata: &runtime.PodSandboxMetadata{Namespace: "shop", Name: "web", Uid: "1"}},
		RuntimeHandler: "runc",
		ContainerConfigs: []*runtime.ContainerConfig{
			{Image: spec(), Mounts: []*runtime.Mount{{Image: spec()}}}, {Image: spec()},
		},
	}
	resp, err := a.containers.restorePod(t.Context(), r, func(_ context.Context, r proto.Message) (proto.Message, error) {
		specs := imageSpecs(r.(*runtime.RestorePodRequest).GetContainerConfigs()...)
		if len(specs) != 3 {
			t.Errorf("got images %v, want three", specs)
		}
		for _, got := range specs {
			if got.GetImage() != a.img.Config.Digest.String() || got.GetUserSpecifiedImage() != adoptedTag {
				t.Errorf("got image %v, want the ID and the name", got)
			}
		}
		for _, record := range []string{adoptedTag, a.img.Config.Digest.String()} {
			noError(t, a.Node.Images.Delete(a.Context(t), record))
			_, err := a.base.Store.(*store.Store).Sync(a.Context(t), record)
			noError(t, err)
		}
		a.Collect(t)
		if !a.HasBlob(t, a.img.Config.Digest) || !a.HasSnapshot(t, "first", a.img.ChainID) {
			t.Error("the image is gone during the call")
		}
		return &runtime.RestorePodResponse{PodSandboxId: "restored"}, nil
	})
	noError(t, err)
	if spec := r.GetContainerConfigs()[0].GetImage(); spec.GetImage() != adoptedTag || len(spec.GetAnnotations()) > 0 {
		t.Errorf("the request of the caller has changed: %v", spec)
	}
	made, err := a.base.sandboxes.byID(t.Context(), resp.(*runtime.RestorePodResponse).GetPodSandboxId())
	if err != nil || made == nil || made.handler != "runc" || made.pod.Name != "web" {
		t.Errorf("got sandbox %+v, %v", made, err)
	}
}

// TestRestorePodFails restores pods that cannot be restored. Nothing is kept of them.
func TestRestorePodFails(t *testing.T) {
	a := newAdoptedNode(t)
	refused := errors.New("upstream refuses")
	restore := func(handler, image string) error {
		_, err := a.containers.restorePod(t.Context(), &runtime.RestorePodRequest{
			Config:         &runtime.PodSandboxConfig{Metadata: &runtime.PodSandboxMetadata{Uid: "1"}},
			RuntimeHandler: handler, ContainerConfigs: []*runtime.ContainerConfig{{Image: &runtime.ImageSpec{Image: image}}},
		}, func(context.Context, proto.Message) (proto.Message, error) {
			return nil, refused
		})
		return err
	}
	var failed *imagepin.Error
	if err := restore("other", adoptedTag); !errors.As(err, &failed) || failed.Reason != imagepin.UnknownRuntimeHandler {
		t.Errorf("another handler: got %v, want %s", err, imagepin.UnknownRuntimeHandler)
	}
	if err := restore("", "sha256:"+a.img.Manifest.Digest.Encoded()); !errors.As(err, &failed) || failed.Reason != imagepin.ImageNotReady {
		t.Errorf("an image that is not on the node: got %v, want %s", err, imagepin.ImageNotReady)
	}
	if err := restore("", adoptedTag); !errors.Is(err, refused) {
		t.Errorf("upstream refuses: got %v", err)
	}
	if !a.complete(t) {
		t.Error("the image is gone")
	}
}
