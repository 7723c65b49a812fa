package pull

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestHandlerOfACall pulls one tag with each of the ways in which a call can say whose it is, and looks which platform came of it.
func TestHandlerOfACall(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}})
	theirs, host := r.MustPod("foreign"), r.MustPod("")
	unseen := func(c *cri.PodSandboxConfig) *cri.PodSandboxConfig {
		return &cri.PodSandboxConfig{Metadata: c.Metadata}
	}
	cases := []struct {
		name    string
		call    testkit.Call
		foreign bool
	}{
		{"nothing", testkit.Call{}, false},
		{"handler", testkit.Call{Handler: "foreign"}, true},
		{"sandbox uid", testkit.Call{Sandbox: unseen(theirs.Config)}, true},
		{"sandbox uid of the default", testkit.Call{Sandbox: unseen(host.Config)}, false},
		{"config.seen of the spec", testkit.Call{Annotations: testkit.SeenAnnotations(theirs)}, true},
		{"config.seen of the sandbox", testkit.Call{Sandbox: &cri.PodSandboxConfig{Annotations: testkit.SeenAnnotations(theirs)}}, true},
		{"annotation", testkit.Call{Annotations: map[string]string{testkit.HandlerAnnotation: "foreign"}}, true},
		{"annotation of the sandbox", testkit.Call{Sandbox: &cri.PodSandboxConfig{Annotations: map[string]string{testkit.HandlerAnnotation: "foreign"}}}, true},
		{"unknown sandbox", testkit.Call{Sandbox: &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Uid: "nobody"}}}, false},
		{"unknown config.seen, then annotation", testkit.Call{Annotations: map[string]string{node.SeenAnnotation: "never", testkit.HandlerAnnotation: "foreign"}}, true},
		{"handler before sandbox", testkit.Call{Handler: "runc", Sandbox: theirs.Config}, false},
		{"handler before annotations", testkit.Call{Handler: "foreign", Annotations: map[string]string{testkit.HandlerAnnotation: "runc"}}, true},
		{"sandbox before annotation", testkit.Call{Sandbox: unseen(theirs.Config), Annotations: map[string]string{testkit.HandlerAnnotation: "runc"}}, true},
		{"config.seen before annotation", testkit.Call{Annotations: map[string]string{node.SeenAnnotation: testkit.SeenAnnotations(host)[node.SeenAnnotation], testkit.HandlerAnnotation: "foreign"}}, false},
	}
	check := func(t *testing.T, round string) {
		for i, c := range cases {
			// An image of its own each time, so that no answer comes of an earlier pull.
			version := strings.ReplaceAll(round+" "+c.name, " ", "-")
			opts := images.Options{Version: version}
			ref, _ := r.Push("app:"+strings.NewReplacer(",", "", ".", "-").Replace(version), opts, images.HostPlatform(), testkit.Foreign)
			if c.call.Sandbox == nil && i > 0 { // ImageStatus has no sandbox
				if id := r.StatusAs(ref, c.call); id != "" {
					t.Errorf("%s: the image is there before it was pulled", c.name)
				}
			}
			id, err := r.PullAs(ref, c.call)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			want, not := "runc", "foreign"
			if c.foreign {
				want, not = not, want
			}
			if got := r.StatusAs(ref, testkit.Call{Handler: want}); got != id {
				t.Errorf("%s: the pull gave %s; for handler %s there is %q", c.name, id, want, got)
			}
			if got := r.StatusAs(ref, testkit.Call{Handler: not}); got != "" {
				t.Errorf("%s: pulled for handler %s, where nobody asked for it", c.name, not)
			}
			if c.call.Sandbox == nil {
				if got := r.StatusAs(ref, c.call); got != id {
					t.Errorf("%s: ImageStatus with what the pull had says %q, not %s", c.name, got, id)
				}
			}
		}
	}
	check(t, "first")
	// What was in memory is gone, and the sandboxes are still there.
	r.KillAndRestart(nil)
	check(t, "after a crash")
	// A sandbox that is gone says nothing any more.
	r.MustRemovePod(theirs)
	ref, _ := r.Push("app:gone", images.Options{Version: "gone"}, images.HostPlatform(), testkit.Foreign)
	if _, err := r.PullAs(ref, testkit.Call{Annotations: testkit.SeenAnnotations(theirs)}); err != nil {
		t.Fatal(err)
	}
	if r.StatusAs(ref, testkit.Call{Handler: "runc"}) == "" {
		t.Error("a pull with the config.seen of a sandbox that is gone is not for the default handler")
	}
}

// TestUnknownHandler names a handler that is not configured in every call that can name one.
func TestUnknownHandler(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}})
	ref, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	id := r.MustPull(ref, "")
	spec := &cri.ImageSpec{Image: ref, RuntimeHandler: "nosuch"}
	annotated := &cri.ImageSpec{Image: ref, Annotations: map[string]string{testkit.HandlerAnnotation: "nosuch"}}
	for name, do := range map[string]func() error{
		"PullImage": func() error {
			_, err := r.Images().PullImage(r.Ctx, &cri.PullImageRequest{Image: spec})
			return err
		},
		"PullImage by annotation": func() error {
			_, err := r.Images().PullImage(r.Ctx, &cri.PullImageRequest{Image: annotated})
			return err
		},
		"ImageStatus": func() error {
			_, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: spec})
			return err
		},
		"ImageStatus by annotation": func() error {
			_, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: annotated})
			return err
		},
		"RemoveImage": func() error {
			_, err := r.Images().RemoveImage(r.Ctx, &cri.RemoveImageRequest{Image: spec})
			return err
		},
		"RunPodSandbox": func() error {
			_, err := r.Runtime().RunPodSandbox(r.Ctx, &cri.RunPodSandboxRequest{Config: r.PodConfig(node.PodOptions{}), RuntimeHandler: "nosuch"})
			return err
		},
	} {
		err := do()
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s with an unknown handler: code %s (%v)", name, status.Code(err), err)
		}
		for _, want := range []string{"UnknownRuntimeHandler", `"nosuch"`, `"foreign", "runc"`} {
			if !strings.Contains(status.Convert(err).Message(), want) {
				t.Errorf("%s with an unknown handler does not say %s: %v", name, want, err)
			}
		}
	}
	if r.MustStatus(ref, "").GetId() != id {
		t.Error("the image is gone")
	}
}

// TestImageStatusWithoutHandler asks in kubelet's two ways that name no handler: with a pod's annotations, which is a question about
// that pod's target alone, and with nothing at all, which must not be answered "absent" for an image that is there.
func TestImageStatusWithoutHandler(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}, {Name: testkit.Second, Snapshotter: "native"}}})
	ref, digest := r.Push("app:v1", images.Options{User: "7"}, images.HostPlatform(), testkit.Foreign)
	pod := map[string]string{"some": "annotation"}

	if got := r.StatusAs(ref, testkit.Call{}); got != "" {
		t.Errorf("an image that was never pulled is %s", got)
	}
	theirs := r.MustPull(ref, "foreign")
	for _, name := range []string{ref, digest, theirs} {
		if got := r.StatusAs(name, testkit.Call{Annotations: pod}); got != "" {
			t.Errorf("%s is there for a pod of the default handler: %s", name, got)
		}
		if got := r.StatusAs(name, testkit.Call{}); got != theirs {
			t.Errorf("lenient ImageStatus of %s says %q, although %s is there for another handler", name, got, theirs)
		}
	}
	if uid := r.MustStatus(ref, "").GetUid(); uid == nil || uid.Value != 7 {
		t.Errorf("the user is %v, not 7", uid)
	}

	ours := r.MustPull(ref, "")
	if got := r.StatusAs(ref, testkit.Call{Annotations: pod}); got != ours {
		t.Errorf("strict ImageStatus says %q after the pull for the default handler gave %s", got, ours)
	}
	for _, c := range []struct {
		handler, want string
	}{{"foreign", theirs}, {"runc", ours}, {"foreign", theirs}} {
		r.StatusAs(ref, testkit.Call{Handler: c.handler})
		if got := r.StatusAs(ref, testkit.Call{}); got != c.want {
			t.Errorf("after handler %s was asked for, lenient ImageStatus says %q, not %s", c.handler, got, c.want)
		}
	}
	// A target that is absent is answered with no entry: what was answered last holds.
	r.StatusAs(ref, testkit.Call{Handler: testkit.Second})
	if got := r.StatusAs(ref, testkit.Call{}); got != theirs {
		t.Errorf("after an absent target was asked for, lenient ImageStatus says %q, not %s, which was answered last", got, theirs)
	}
	r.MustRemove(ref, "foreign")
	if got := r.StatusAs(ref, testkit.Call{Handler: "foreign"}); got != "" {
		t.Errorf("%s is there for a handler that it was removed for", got)
	}
	if got := r.StatusAs(ref, testkit.Call{}); got != ours {
		t.Errorf("lenient ImageStatus says %q, not %s", got, ours)
	}
}

// TestVerboseImageStatus reads what ImageStatus adds when it is asked to.
func TestVerboseImageStatus(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}, {Name: testkit.Second, Snapshotter: "native"}}})
	ref, digest := r.Push("app:v1", images.Options{Labels: map[string]string{"a": "b"}}, images.HostPlatform(), testkit.Foreign)
	id := r.MustPull(ref, "")
	r.MustPull(ref, testkit.Second)
	r.MustPull(ref, "foreign")

	res, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref, RuntimeHandler: testkit.Second}, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		ChainID   string
		ImageSpec struct {
			Architecture string
			Config       struct{ Labels map[string]string }
		}
	}
	if err := json.Unmarshal([]byte(res.Info["info"]), &info); err != nil {
		t.Fatalf("info %q: %v", res.Info["info"], err)
	}
	if _, ok := r.MustState().Snapshots[node.Namespace+"/native/"+info.ChainID]; !ok || info.ImageSpec.Config.Labels["a"] != "b" {
		t.Errorf("info is %s", res.Info["info"])
	}
	var ours struct {
		Keys []struct {
			Ref, Platform, Snapshotter, Digest, Source, Host string
			Handlers                                         []string
		}
	}
	if err := json.Unmarshal([]byte(res.Info["imagepin"]), &ours); err != nil {
		t.Fatalf("imagepin %q: %v", res.Info["imagepin"], err)
	}
	found := make(map[string]bool)
	for _, k := range ours.Keys {
		found[k.Ref+" "+k.Snapshotter+" "+strings.Join(k.Handlers, "+")] = true
		if k.Platform != images.HostPlatform() || !strings.HasSuffix(digest, k.Digest) || k.Source != "pull" || k.Host != r.Reg.Host() {
			t.Errorf("key %+v", k)
		}
	}
	for _, want := range []string{ref + " overlayfs runc", digest + " overlayfs runc", ref + " native second", digest + " native second"} {
		if !found[want] || len(found) != 4 {
			t.Errorf("keys %v do not have %s, or are not four", found, want)
		}
	}
	quiet, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: id}})
	if err != nil {
		t.Fatal(err)
	}
	if len(quiet.Info) != 0 {
		t.Errorf("info without being asked for: %v", quiet.Info)
	}
}
