package cri

import (
	"context"
	"testing"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/gcroots"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// TestRecordRemovedDuringCreateContainer removes the records of an image with another tool while upstream creates a
// container from it. A garbage collection keeps its content and its snapshot until upstream has answered.
func TestRecordRemovedDuringCreateContainer(t *testing.T) {
	t.Run("lease", func(t *testing.T) { removeDuringCreateContainer(t, newAdoptedNode(t)) })
	t.Run("roots", func(t *testing.T) {
		a := newAdoptedNode(t)
		roots := gcroots.New()
		a.DB.RegisterCollectibleResource(gcroots.ResourceType, roots)
		a.base.Holder = roots
		removeDuringCreateContainer(t, a)
	})
}

func removeDuringCreateContainer(t *testing.T, a *adoptedNode) {
	t.Helper()
	released := 0
	a.base.Released = func() { released++ }
	here := func() []bool {
		t.Helper()
		a.Collect(t)
		return []bool{
			a.HasBlob(t, a.img.Manifest.Digest), a.HasBlob(t, a.img.Config.Digest), a.HasSnapshot(t, "first", a.img.ChainID),
		}
	}
	_, err := a.containers.createContainer(t.Context(), &runtime.CreateContainerRequest{
		PodSandboxId: adoptedSandbox, Config: &runtime.ContainerConfig{Image: &runtime.ImageSpec{Image: adoptedTag}},
	}, func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
		for _, record := range []string{adoptedTag, a.img.Config.Digest.String()} {
			noError(t, a.Node.Images.Delete(a.Context(t), record))
			_, err := a.base.Store.(*store.Store).Sync(a.Context(t), record)
			noError(t, err)
		}
		if got := here(); !got[0] || !got[1] || !got[2] {
			t.Errorf("during the call: manifest, configuration and snapshot exist: %v, want all", got)
		}
		return &runtime.CreateContainerResponse{ContainerId: "container"}, nil
	})
	noError(t, err)
	if released != 1 {
		t.Errorf("asked for %d collections after the call, want 1", released)
	}
	if got := here(); got[0] || got[1] || got[2] {
		t.Errorf("after the call: manifest, configuration and snapshot exist: %v, want none", got)
	}
}
