package cri

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestCheckImageUser checks calls in which kubelet sends the ID of one image and a pin selects another.
func TestCheckImageUser(t *testing.T) {
	one, two := digest.FromString("one"), digest.FromString("two")
	uid := func(n int64) *runtime.Int64Value { return &runtime.Int64Value{Value: n} }
	for _, test := range []struct {
		name        string
		given       string
		entry, runs imagepin.Entry
		uid         *runtime.Int64Value
		username    string
		wantErr     bool
	}{
		{"root instead of a number", one.String(), imagepin.Entry{ImageID: one}, imagepin.Entry{ImageID: two, User: "1000"}, uid(0), "", true},
		{"a number instead of root", one.String(), imagepin.Entry{ImageID: one, User: "1000:5"}, imagepin.Entry{ImageID: two}, uid(1000), "", true},
		{"a name instead of a number", one.String(), imagepin.Entry{ImageID: one, User: "web"}, imagepin.Entry{ImageID: two, User: "7"}, nil, "web", true},
		{"the same user", one.String(), imagepin.Entry{ImageID: one, User: "7"}, imagepin.Entry{ImageID: two, User: "7:7"}, uid(7), "", false},
		{"root by number", one.String(), imagepin.Entry{ImageID: one}, imagepin.Entry{ImageID: two, User: "0"}, uid(0), "", false},
		{"the same image", one.String(), imagepin.Entry{ImageID: one}, imagepin.Entry{ImageID: one}, uid(0), "", false},
		{"the pod specifies a user", one.String(), imagepin.Entry{ImageID: one}, imagepin.Entry{ImageID: two, User: "1000"}, uid(3), "", false},
		{"no user", one.String(), imagepin.Entry{ImageID: one}, imagepin.Entry{ImageID: two, User: "1000"}, nil, "", false},
		{"by reference", "app:v1", imagepin.Entry{ImageID: one}, imagepin.Entry{ImageID: two, User: "1000"}, uid(0), "", false},
	} {
		c := &runtime.ContainerConfig{Linux: &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{
			RunAsUser: test.uid, RunAsUsername: test.username,
		}}}
		err := checkImageUser(c, containerImage{spec: &runtime.ImageSpec{Image: test.given}, entry: test.entry}, test.runs)
		if test.wantErr && !errdefs.IsUnavailable(err) || !test.wantErr && err != nil {
			t.Errorf("%s: got %v, want an Unavailable error: %t", test.name, err, test.wantErr)
		}
	}
}

// TestCheckImageUserName checks calls with the ID of the image that runs, and a user name. kubelet has a name only from
// an image. Other clients can give any.
func TestCheckImageUserName(t *testing.T) {
	id := digest.FromString("one")
	kubelet := map[string]string{upstream.ContainerNameLabel: "app"}
	for name, test := range map[string]struct {
		user     string // of the image
		username string
		uid      *runtime.Int64Value
		labels   map[string]string
		wantErr  bool
	}{
		"a name instead of a number":  {"1000", "root", nil, kubelet, true},
		"a name instead of none":      {"", "web", nil, kubelet, true},
		"another name":                {"web:web", "db", nil, kubelet, true},
		"the name of the image":       {"web:web", "web", nil, kubelet, false},
		"the number of the image":     {"1000", "", &runtime.Int64Value{Value: 1000}, kubelet, false},
		"another number":              {"1000", "", &runtime.Int64Value{}, kubelet, false},
		"a number instead of a name":  {"web", "", &runtime.Int64Value{}, kubelet, false},
		"another name, not kubelet's": {"web", "db", nil, nil, false},
	} {
		c := &runtime.ContainerConfig{Labels: test.labels, Linux: &runtime.LinuxContainerConfig{
			SecurityContext: &runtime.LinuxContainerSecurityContext{RunAsUser: test.uid, RunAsUsername: test.username},
		}}
		runs := imagepin.Entry{ImageID: id, User: test.user}
		err := checkImageUser(c, containerImage{spec: &runtime.ImageSpec{Image: id.String()}, entry: runs}, runs)
		if test.wantErr && !errdefs.IsUnavailable(err) || !test.wantErr && err != nil {
			t.Errorf("%s: got %v, want an Unavailable error: %t", name, err, test.wantErr)
		}
	}
}

// TestUpdateMark checks that a pod whose mark changes is found by its last mark, and that no mark remains after its
// sandbox is removed.
func TestUpdateMark(t *testing.T) {
	x := newSandboxes(nil, nil)
	s := &sandbox{handler: "h", marks: podMarks("uid", map[string]string{upstream.SeenAnnotation: "first"})}
	x.add("id", s)
	for _, seen := range []string{"second", "second", "third"} {
		config := &runtime.PodSandboxConfig{Annotations: map[string]string{upstream.SeenAnnotation: seen}}
		x.updateMark(s, config)
		if x.findByMark(podMarks("", config.GetAnnotations())) != s {
			t.Errorf("not found by %s", seen)
		}
	}
	// A new list has the sandbox again.
	listed := &sandbox{handler: "h", marks: s.marks}
	x.add("id", listed)
	for seen, known := range map[string]bool{"first": true, "second": false, "third": true} {
		if got := x.findByMark([]string{"seen " + seen}); (got == listed) != known {
			t.Errorf("mark %s: got %v, want found: %t", seen, got, known)
		}
	}
	x.remove("id", nil)
	if len(x.marks) > 0 || len(x.ids) > 0 {
		t.Errorf("a removed sandbox is still cached: %v, %v", x.marks, x.ids)
	}
	x.updateMark(listed, &runtime.PodSandboxConfig{Annotations: map[string]string{upstream.SeenAnnotation: "late"}})
	if len(x.marks) > 0 {
		t.Errorf("updateMark added a removed sandbox: %v", x.marks)
	}
}
