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

// TestHandlerOfACall checks the platform that a pull gets for each way in which a call can identify its handler.
func TestHandlerOfACall(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}})
	foreign, host := r.MustPod("foreign"), r.MustPod("")
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
		{"sandbox uid", testkit.Call{Sandbox: unseen(foreign.Config)}, true},
		{"sandbox uid of the default", testkit.Call{Sandbox: unseen(host.Config)}, false},
		{"config.seen of the spec", testkit.Call{Annotations: testkit.SeenAnnotations(foreign)}, true},
		{"config.seen of the sandbox", testkit.Call{Sandbox: &cri.PodSandboxConfig{Annotations: testkit.SeenAnnotations(foreign)}}, true},
		{"annotation", testkit.Call{Annotations: map[string]string{testkit.HandlerAnnotation: "foreign"}}, true},
		{"annotation of the sandbox", testkit.Call{Sandbox: &cri.PodSandboxConfig{Annotations: map[string]string{testkit.HandlerAnnotation: "foreign"}}}, true},
		{"unknown sandbox", testkit.Call{Sandbox: &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Uid: "nobody"}}}, false},
		{"unknown config.seen, then annotation", testkit.Call{Annotations: map[string]string{node.SeenAnnotation: "never", testkit.HandlerAnnotation: "foreign"}}, true},
		{"handler before sandbox", testkit.Call{Handler: "runc", Sandbox: foreign.Config}, false},
		{"handler before annotations", testkit.Call{Handler: "foreign", Annotations: map[string]string{testkit.HandlerAnnotation: "runc"}}, true},
		{"sandbox before annotation", testkit.Call{Sandbox: unseen(foreign.Config), Annotations: map[string]string{testkit.HandlerAnnotation: "runc"}}, true},
		{"config.seen before annotation", testkit.Call{Annotations: map[string]string{node.SeenAnnotation: testkit.SeenAnnotations(host)[node.SeenAnnotation], testkit.HandlerAnnotation: "foreign"}}, false},
	}
	check := func(t *testing.T, round string) {
		for i, c := range cases {
			// Each case has its own image, so that no answer comes from an earlier pull.
			version := strings.ReplaceAll(round+" "+c.name, " ", "-")
			opts := images.Options{Version: version}
			ref, _ := r.Push("app:"+strings.NewReplacer(",", "", ".", "-").Replace(version), opts, images.HostPlatform(), testkit.Foreign)
			if c.call.Sandbox == nil && i > 0 { // ImageStatus has no sandbox
				if id := r.StatusAs(ref, c.call); id != "" {
					t.Errorf("%s: ImageStatus before the pull: got %s, want none", c.name, id)
				}
			}
			id, err := r.PullAs(ref, c.call)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			want, other := "runc", "foreign"
			if c.foreign {
				want, other = other, want
			}
			if got := r.StatusAs(ref, testkit.Call{Handler: want}); got != id {
				t.Errorf("%s: the pull returned %s; ImageStatus for handler %s: got %q", c.name, id, want, got)
			}
			if got := r.StatusAs(ref, testkit.Call{Handler: other}); got != "" {
				t.Errorf("%s: the image was also pulled for handler %s", c.name, other)
			}
			if c.call.Sandbox == nil {
				if got := r.StatusAs(ref, c.call); got != id {
					t.Errorf("%s: ImageStatus with the image spec of the pull: got %q, want %s", c.name, got, id)
				}
			}
		}
	}
	check(t, "first")
	// A crash clears the cache, and the sandboxes remain.
	r.KillAndRestart(nil)
	check(t, "after a crash")
	// A removed sandbox identifies no handler.
	r.MustRemovePod(foreign)
	ref, _ := r.Push("app:gone", images.Options{Version: "gone"}, images.HostPlatform(), testkit.Foreign)
	if _, err := r.PullAs(ref, testkit.Call{Annotations: testkit.SeenAnnotations(foreign)}); err != nil {
		t.Fatal(err)
	}
	if r.StatusAs(ref, testkit.Call{Handler: "runc"}) == "" {
		t.Error("a pull with the config.seen of a removed sandbox is not for the default handler")
	}
}

// TestUnknownHandler checks the error for an unknown handler in every call that can name one.
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
			t.Errorf("%s with an unknown handler: got code %s (%v), want InvalidArgument", name, status.Code(err), err)
		}
		for _, want := range []string{"UnknownRuntimeHandler", `"nosuch"`, `"foreign", "runc"`} {
			if !strings.Contains(status.Convert(err).Message(), want) {
				t.Errorf("%s with an unknown handler: the error does not contain %s: %v", name, want, err)
			}
		}
	}
	if r.MustStatus(ref, "").GetId() != id {
		t.Error("the image is gone")
	}
}

// TestImageStatusWithoutHandler checks kubelet's two calls without a handler. With a pod's annotations, it is strict:
// only the pod's target counts. Without them, it is lenient: an image that is ready for any target is not absent.
func TestImageStatusWithoutHandler(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}, {Name: testkit.Second, Snapshotter: "native"}}})
	ref, digest := r.Push("app:v1", images.Options{User: "7"}, images.HostPlatform(), testkit.Foreign)
	pod := map[string]string{"some": "annotation"}

	if got := r.StatusAs(ref, testkit.Call{}); got != "" {
		t.Errorf("ImageStatus before any pull: got %s, want none", got)
	}
	foreignID := r.MustPull(ref, "foreign")
	for _, name := range []string{ref, digest, foreignID} {
		if got := r.StatusAs(name, testkit.Call{Annotations: pod}); got != "" {
			t.Errorf("strict ImageStatus of %s: got %s, want none", name, got)
		}
		if got := r.StatusAs(name, testkit.Call{}); got != foreignID {
			t.Errorf("lenient ImageStatus of %s: got %q, want %s, which is ready for another handler", name, got, foreignID)
		}
	}
	if uid := r.MustStatus(ref, "").GetUid(); uid == nil || uid.Value != 7 {
		t.Errorf("got user %v, want 7", uid)
	}

	hostID := r.MustPull(ref, "")
	if got := r.StatusAs(ref, testkit.Call{Annotations: pod}); got != hostID {
		t.Errorf("strict ImageStatus after the pull for the default handler: got %q, want %s", got, hostID)
	}
	for _, c := range []struct {
		handler, want string
	}{{"foreign", foreignID}, {"runc", hostID}, {"foreign", foreignID}} {
		r.StatusAs(ref, testkit.Call{Handler: c.handler})
		if got := r.StatusAs(ref, testkit.Call{}); got != c.want {
			t.Errorf("lenient ImageStatus after a call for handler %s: got %q, want %s", c.handler, got, c.want)
		}
	}
	// The answer for an absent target has no entry, so the last answer stays.
	r.StatusAs(ref, testkit.Call{Handler: testkit.Second})
	if got := r.StatusAs(ref, testkit.Call{}); got != foreignID {
		t.Errorf("lenient ImageStatus after a call for an absent target: got %q, want the last answer %s", got, foreignID)
	}
	r.MustRemove(ref, "foreign")
	if got := r.StatusAs(ref, testkit.Call{Handler: "foreign"}); got != "" {
		t.Errorf("ImageStatus after the removal for the handler: got %s, want none", got)
	}
	if got := r.StatusAs(ref, testkit.Call{}); got != hostID {
		t.Errorf("lenient ImageStatus: got %q, want %s", got, hostID)
	}
}

// TestVerboseImageStatus checks the info that a verbose ImageStatus adds.
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
		t.Errorf("got info %s", res.Info["info"])
	}
	var details struct {
		Keys []struct {
			Ref, Platform, Snapshotter, Digest, Source, Host string
			Handlers                                         []string
		}
	}
	if err := json.Unmarshal([]byte(res.Info["imagepin"]), &details); err != nil {
		t.Fatalf("imagepin %q: %v", res.Info["imagepin"], err)
	}
	found := make(map[string]bool)
	for _, k := range details.Keys {
		found[k.Ref+" "+k.Snapshotter+" "+strings.Join(k.Handlers, "+")] = true
		if k.Platform != images.HostPlatform() || !strings.HasSuffix(digest, k.Digest) || k.Source != "pull" || k.Host != r.Reg.Host() {
			t.Errorf("got key %+v", k)
		}
	}
	for _, want := range []string{ref + " overlayfs runc", digest + " overlayfs runc", ref + " native second", digest + " native second"} {
		if !found[want] || len(found) != 4 {
			t.Errorf("got keys %v, want 4 with %s", found, want)
		}
	}
	quiet, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: id}})
	if err != nil {
		t.Fatal(err)
	}
	if len(quiet.Info) != 0 {
		t.Errorf("info without verbose: got %v, want none", quiet.Info)
	}
}
