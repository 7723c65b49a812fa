package cri

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestRestoreName replaces an image by its ID in a request, and returns to callers what they sent. The image of a volume keeps the ID.
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
		setImageID(spec, imagepin.Entry{ImageID: digest.Digest(id)})
		if spec.GetImage() != id || spec.GetUserSpecifiedImage() != test.user {
			t.Errorf("%s: upstream gets %v", name, spec)
		}
		status := &runtime.ContainerStatus{Image: proto.CloneOf(spec), Mounts: []*runtime.Mount{{}, {Image: proto.CloneOf(spec)}}}
		restoreStatus(status)
		if got := status.GetImage(); !proto.Equal(got, test.sent) {
			t.Errorf("%s: got %v, want %v", name, got, test.sent)
		}
		want := &runtime.ImageSpec{Image: id, UserSpecifiedImage: test.user, Annotations: test.sent.GetAnnotations()}
		if got := status.GetMounts()[1].GetImage(); !proto.Equal(got, want) {
			t.Errorf("%s: got volume %v, want %v", name, got, want)
		}
	}
	restoreStatus(nil)
}

// TestRestoreInfo restores the names in the verbose part of a status, and nothing else.
func TestRestoreInfo(t *testing.T) {
	id := "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	sent := &runtime.ContainerConfig{
		Image:  &runtime.ImageSpec{Image: "app:v1"},
		Mounts: []*runtime.Mount{{HostPath: "/a"}, {Image: &runtime.ImageSpec{Image: "files:v1"}}},
	}
	text := func(c *runtime.ContainerConfig) string {
		b, err := json.Marshal(map[string]any{"pid": 12345678901234567, "config": c})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	upstream := proto.CloneOf(sent)
	for _, spec := range imageSpecs(upstream) {
		setImageID(spec, imagepin.Entry{ImageID: digest.Digest(id)})
	}
	info := map[string]string{"info": text(upstream)}
	restoreInfo(info)
	var got, want any
	if err := errors.Join(json.Unmarshal([]byte(info["info"]), &got), json.Unmarshal([]byte(text(sent)), &want)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) || !strings.Contains(info["info"], "12345678901234567") {
		t.Errorf("got %s, want %s", info["info"], text(sent))
	}
	for _, unreadable := range []string{requestedName, `{"config": "` + requestedName + `"}`, `{"x": "` + requestedName + `"}`} {
		info := map[string]string{"info": unreadable}
		if restoreInfo(info); info["info"] != unreadable {
			t.Errorf("got %q, want %q", info["info"], unreadable)
		}
	}
	restoreInfo(nil)
}
