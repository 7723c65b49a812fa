package cri

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestRestoreName replaces an image by its ID in a request, and returns to callers what they sent.
func TestRestoreName(t *testing.T) {
	id := "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	for name, test := range map[string]struct {
		sent *runtime.ImageSpec
		user string // upstream gets it as the name that the user wrote
	}{
		"name":                  {&runtime.ImageSpec{Image: "app:v1"}, "app:v1"},
		"name with annotations": {&runtime.ImageSpec{Image: "app:v1", Annotations: map[string]string{"a": "b"}}, "app:v1"},
		"ID and name":           {&runtime.ImageSpec{Image: id, UserSpecifiedImage: "app:v1"}, "app:v1"},
		"ID":                    {&runtime.ImageSpec{Image: id}, ""},
	} {
		spec := proto.CloneOf(test.sent)
		setImageID(spec, imagepin.Entry{ImageID: "sha256:1111111111111111111111111111111111111111111111111111111111111111"})
		if spec.GetImage() != id || spec.GetUserSpecifiedImage() != test.user {
			t.Errorf("%s: upstream gets %v", name, spec)
		}
		status := &runtime.ContainerStatus{Image: proto.CloneOf(spec), Mounts: []*runtime.Mount{{}, {Image: proto.CloneOf(spec)}}}
		restoreStatus(status)
		for _, got := range []*runtime.ImageSpec{status.GetImage(), status.GetMounts()[1].GetImage()} {
			if !proto.Equal(got, test.sent) {
				t.Errorf("%s: got %v, want %v", name, got, test.sent)
			}
		}
	}
	restoreStatus(nil)
}
