package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// handlerAnnotation is how a client without a field for it names the handler of an image call.
const handlerAnnotation = "io.containerd.cri.runtime-handler"

// call is what an image call says about whose it is.
type call struct {
	handler     string
	annotations map[string]string
	sandbox     *cri.PodSandboxConfig
}

func seen(p *node.Pod) map[string]string {
	return map[string]string{node.SeenAnnotation: p.Config.Annotations[node.SeenAnnotation]}
}

func (r *rig) pullAs(ref string, c call) (string, error) {
	res, err := r.Images().PullImage(r.ctx, &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: ref, RuntimeHandler: c.handler, Annotations: c.annotations}, SandboxConfig: c.sandbox,
	})
	return res.GetImageRef(), err
}

func (r *rig) statusAs(ref string, c call) string {
	r.t.Helper()
	res, err := r.Images().ImageStatus(r.ctx, &cri.ImageStatusRequest{
		Image: &cri.ImageSpec{Image: ref, RuntimeHandler: c.handler, Annotations: c.annotations},
	})
	if err != nil {
		r.t.Fatalf("ImageStatus %s: %v", ref, err)
	}
	return res.GetImage().GetId()
}

// TestHandlerOfACall pulls one tag with each of the ways in which a call can say whose it is, and looks which platform came of it.
func TestHandlerOfACall(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: foreign}}})
	theirs, host := r.pod("foreign"), r.pod("")
	unseen := func(c *cri.PodSandboxConfig) *cri.PodSandboxConfig {
		return &cri.PodSandboxConfig{Metadata: c.Metadata}
	}
	cases := []struct {
		name    string
		call    call
		foreign bool
	}{
		{"nothing", call{}, false},
		{"handler", call{handler: "foreign"}, true},
		{"sandbox uid", call{sandbox: unseen(theirs.Config)}, true},
		{"sandbox uid of the default", call{sandbox: unseen(host.Config)}, false},
		{"config.seen of the spec", call{annotations: seen(theirs)}, true},
		{"config.seen of the sandbox", call{sandbox: &cri.PodSandboxConfig{Annotations: seen(theirs)}}, true},
		{"annotation", call{annotations: map[string]string{handlerAnnotation: "foreign"}}, true},
		{"annotation of the sandbox", call{sandbox: &cri.PodSandboxConfig{Annotations: map[string]string{handlerAnnotation: "foreign"}}}, true},
		{"unknown sandbox", call{sandbox: &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Uid: "nobody"}}}, false},
		{"unknown config.seen, then annotation", call{annotations: map[string]string{node.SeenAnnotation: "never", handlerAnnotation: "foreign"}}, true},
		{"handler before sandbox", call{handler: "runc", sandbox: theirs.Config}, false},
		{"handler before annotations", call{handler: "foreign", annotations: map[string]string{handlerAnnotation: "runc"}}, true},
		{"sandbox before annotation", call{sandbox: unseen(theirs.Config), annotations: map[string]string{handlerAnnotation: "runc"}}, true},
		{"config.seen before annotation", call{annotations: map[string]string{node.SeenAnnotation: seen(host)[node.SeenAnnotation], handlerAnnotation: "foreign"}}, false},
	}
	check := func(t *testing.T, round string) {
		for i, c := range cases {
			// An image of its own each time, so that no answer comes of an earlier pull.
			version := strings.ReplaceAll(round+" "+c.name, " ", "-")
			opts := images.Options{Version: version}
			ref, _ := r.push("app:"+strings.NewReplacer(",", "", ".", "-").Replace(version), opts, images.HostPlatform(), foreign)
			if c.call.sandbox == nil && i > 0 { // ImageStatus has no sandbox
				if id := r.statusAs(ref, c.call); id != "" {
					t.Errorf("%s: the image is there before it was pulled", c.name)
				}
			}
			id, err := r.pullAs(ref, c.call)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			want, not := "runc", "foreign"
			if c.foreign {
				want, not = not, want
			}
			if got := r.statusAs(ref, call{handler: want}); got != id {
				t.Errorf("%s: the pull gave %s; for handler %s there is %q", c.name, id, want, got)
			}
			if got := r.statusAs(ref, call{handler: not}); got != "" {
				t.Errorf("%s: pulled for handler %s, where nobody asked for it", c.name, not)
			}
			if c.call.sandbox == nil {
				if got := r.statusAs(ref, c.call); got != id {
					t.Errorf("%s: ImageStatus with what the pull had says %q, not %s", c.name, got, id)
				}
			}
		}
	}
	check(t, "first")
	// What was in memory is gone, and the sandboxes are still there.
	r.crash(nil)
	check(t, "after a crash")
	// A sandbox that is gone says nothing any more.
	r.removePod(theirs)
	ref, _ := r.push("app:gone", images.Options{Version: "gone"}, images.HostPlatform(), foreign)
	if _, err := r.pullAs(ref, call{annotations: seen(theirs)}); err != nil {
		t.Fatal(err)
	}
	if r.statusAs(ref, call{handler: "runc"}) == "" {
		t.Error("a pull with the config.seen of a sandbox that is gone is not for the default handler")
	}
}

// TestUnknownHandler names a handler that is not configured in every call that can name one.
func TestUnknownHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: foreign}}})
	ref, _ := r.push("app:v1", images.Options{}, images.HostPlatform())
	id := r.pull(ref, "")
	spec := &cri.ImageSpec{Image: ref, RuntimeHandler: "nosuch"}
	annotated := &cri.ImageSpec{Image: ref, Annotations: map[string]string{handlerAnnotation: "nosuch"}}
	for name, do := range map[string]func() error{
		"PullImage": func() error {
			_, err := r.Images().PullImage(r.ctx, &cri.PullImageRequest{Image: spec})
			return err
		},
		"PullImage by annotation": func() error {
			_, err := r.Images().PullImage(r.ctx, &cri.PullImageRequest{Image: annotated})
			return err
		},
		"ImageStatus": func() error {
			_, err := r.Images().ImageStatus(r.ctx, &cri.ImageStatusRequest{Image: spec})
			return err
		},
		"ImageStatus by annotation": func() error {
			_, err := r.Images().ImageStatus(r.ctx, &cri.ImageStatusRequest{Image: annotated})
			return err
		},
		"RemoveImage": func() error {
			_, err := r.Images().RemoveImage(r.ctx, &cri.RemoveImageRequest{Image: spec})
			return err
		},
		"RunPodSandbox": func() error {
			_, err := r.Runtime().RunPodSandbox(r.ctx, &cri.RunPodSandboxRequest{Config: r.PodConfig(node.PodOptions{}), RuntimeHandler: "nosuch"})
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
	if r.status(ref, "").GetId() != id {
		t.Error("the image is gone")
	}
}

// TestImageStatusWithoutHandler asks in kubelet's two ways that name no handler: with a pod's annotations, which is a question about
// that pod's target alone, and with nothing at all, which must not be answered "absent" for an image that is there.
func TestImageStatusWithoutHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: foreign}, {Name: second, Snapshotter: "native"}}})
	ref, digest := r.push("app:v1", images.Options{User: "7"}, images.HostPlatform(), foreign)
	pod := map[string]string{"some": "annotation"}

	if got := r.statusAs(ref, call{}); got != "" {
		t.Errorf("an image that was never pulled is %s", got)
	}
	theirs := r.pull(ref, "foreign")
	for _, name := range []string{ref, digest, theirs} {
		if got := r.statusAs(name, call{annotations: pod}); got != "" {
			t.Errorf("%s is there for a pod of the default handler: %s", name, got)
		}
		if got := r.statusAs(name, call{}); got != theirs {
			t.Errorf("lenient ImageStatus of %s says %q, although %s is there for another handler", name, got, theirs)
		}
	}
	if uid := r.status(ref, "").GetUid(); uid == nil || uid.Value != 7 {
		t.Errorf("the user is %v, not 7", uid)
	}

	ours := r.pull(ref, "")
	if got := r.statusAs(ref, call{annotations: pod}); got != ours {
		t.Errorf("strict ImageStatus says %q after the pull for the default handler gave %s", got, ours)
	}
	for _, c := range []struct {
		handler, want string
	}{{"foreign", theirs}, {"runc", ours}, {"foreign", theirs}} {
		r.statusAs(ref, call{handler: c.handler})
		if got := r.statusAs(ref, call{}); got != c.want {
			t.Errorf("after handler %s was asked for, lenient ImageStatus says %q, not %s", c.handler, got, c.want)
		}
	}
	// A target that is absent is answered with no entry: what was answered last holds.
	r.statusAs(ref, call{handler: second})
	if got := r.statusAs(ref, call{}); got != theirs {
		t.Errorf("after an absent target was asked for, lenient ImageStatus says %q, not %s, which was answered last", got, theirs)
	}
	r.remove(ref, "foreign")
	if got := r.statusAs(ref, call{handler: "foreign"}); got != "" {
		t.Errorf("%s is there for a handler that it was removed for", got)
	}
	if got := r.statusAs(ref, call{}); got != ours {
		t.Errorf("lenient ImageStatus says %q, not %s", got, ours)
	}
}

// TestVerboseImageStatus reads what ImageStatus adds when it is asked to.
func TestVerboseImageStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: foreign}, {Name: second, Snapshotter: "native"}}})
	ref, digest := r.push("app:v1", images.Options{Labels: map[string]string{"a": "b"}}, images.HostPlatform(), foreign)
	id := r.pull(ref, "")
	r.pull(ref, second)
	r.pull(ref, "foreign")

	res, err := r.Images().ImageStatus(r.ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref, RuntimeHandler: second}, Verbose: true})
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
	if _, ok := r.state().Snapshots[node.Namespace+"/native/"+info.ChainID]; !ok || info.ImageSpec.Config.Labels["a"] != "b" {
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
		if k.Platform != images.HostPlatform() || !strings.HasSuffix(digest, k.Digest) || k.Source != "pull" || k.Host != r.reg.Host() {
			t.Errorf("key %+v", k)
		}
	}
	for _, want := range []string{ref + " overlayfs runc", digest + " overlayfs runc", ref + " native second", digest + " native second"} {
		if !found[want] || len(found) != 4 {
			t.Errorf("keys %v do not have %s, or are not four", found, want)
		}
	}
	quiet, err := r.Images().ImageStatus(r.ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: id}})
	if err != nil {
		t.Fatal(err)
	}
	if len(quiet.Info) != 0 {
		t.Errorf("info without being asked for: %v", quiet.Info)
	}
}
