package cri

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// TestLongNames sends calls with a name that is too long for a reference. It is not parsed, which would take seconds. Calls that
// need the image fail and name its beginning; the others answer as for an image that is absent, as containerd's CRI does.
func TestLongNames(t *testing.T) {
	name := "registry.example/" + strings.Repeat("a/", 32<<20) + "a:v1"
	long := &runtime.ImageSpec{Image: name}
	p := newPinnedNode(t, policy.Node)
	p.runSandbox("a", "")
	wantInvalid := func(what string, err error) {
		t.Helper()
		var known *imagepin.Error
		if !errors.As(err, &known) || known.Reason != imagepin.InvalidReference || !errdefs.IsInvalidArgument(err) || len(err.Error()) > 1024 ||
			!strings.Contains(err.Error(), "registry.example/a/a/") {
			t.Errorf("%s: got %.2000v", what, err)
		}
	}
	_, err := p.pullImage(p.ctx(), &runtime.PullImageRequest{Image: long}, nil)
	wantInvalid("PullImage", err)
	for what, config := range map[string]*runtime.ContainerConfig{
		"CreateContainer":                   {Image: long},
		"CreateContainer, the pod's name":   {Image: &runtime.ImageSpec{Image: pinnedTag, UserSpecifiedImage: name}},
		"CreateContainer with image volume": {Image: &runtime.ImageSpec{Image: pinnedTag}, Mounts: []*runtime.Mount{{Image: long}}},
	} {
		r := &runtime.CreateContainerRequest{PodSandboxId: "sandbox-a", Config: config}
		_, err := (&containers{p.base}).createContainer(p.ctx(), r, func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
			t.Error("upstream is called")
			return nil, nil
		})
		wantInvalid(what, err)
	}
	if status, err := p.imageStatus(p.ctx(), &runtime.ImageStatusRequest{Image: long}, nil); err != nil || status.GetImage() != nil {
		t.Errorf("ImageStatus: %v, %v", status, err)
	}
	if _, err := (&remover{p.base}).removeImage(p.ctx(), &runtime.RemoveImageRequest{Image: long}, nil); err != nil {
		t.Errorf("RemoveImage: %v", err)
	}
	if found := p.list(&runtime.ImageFilter{Image: long}); len(found) != 0 {
		t.Errorf("ListImages: %v", found)
	}
}
