package pull

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/internal/upstream"
)

// TestGuestPull checks that the runtime of a guest that pulls images itself gets the digest that the pod runs, for a tag that has
// moved in the registry, with and without a pin. Callers see the names that they sent.
func TestGuestPull(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{
		Handlers: []node.Handler{{Name: "guest"}, {Name: "plain"}, {Name: "guest-arm", Platform: "linux/arm64"}},
		Extra: testkit.ConsistencyRules + `
[plugins."io.containerd.imagepin.v1.images".handlers]
guest.guest_pull = true
guest-arm.guest_pull = true
`,
	})
	for _, name := range []string{"free/app", "node/app"} {
		tag := r.Reg.Ref(name + ":v1")
		first := r.Reg.Ref(name + "@" + r.Version(name+":v1", name+" first"))
		ids := make(map[string]string)
		for _, handler := range []string{"guest", "plain", "guest-arm"} {
			ids[handler] = r.MustPull(tag, handler)
		}
		second := r.Reg.Ref(name + "@" + r.Version(name+":v1", name+" second"))
		for handler, want := range map[string]string{"plain": tag, "guest": first, "guest-arm": first} {
			pod := r.MustPod(handler)
			forms := map[string]node.ContainerOptions{"as kubelet": {Image: ids[handler], UserImage: tag}}
			if handler == "guest" {
				forms["by name"], forms["by ID"] = node.ContainerOptions{Image: tag}, node.ContainerOptions{Image: ids[handler]}
			}
			for form, opts := range forms {
				c, err := r.CreateContainer(r.Ctx, pod, opts)
				if err != nil {
					t.Errorf("%s, %s, %s: %v", name, handler, form, err)
					continue
				}
				if got := imageName(r, c); got != want {
					t.Errorf("%s, %s, %s: the runtime gets the name %s, want %s", name, handler, form, got, want)
				}
				wantCallersName(r, c, opts, tag)
			}
			r.MustRemovePod(pod)
		}
		if name == "node/app" {
			second = first // it is pinned
		}
		pod := r.MustPod("guest")
		c, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: r.MustPull(tag, "guest"), UserImage: tag})
		if err != nil {
			t.Fatal(err)
		}
		if got := imageName(r, c); got != second {
			t.Errorf("%s, after a pull: the runtime gets the name %s, want %s", name, got, second)
		}
		r.MustRemovePod(pod)
	}
}

// imageName returns the name of a container's image that its runtime gets, from the container's record and, when it runs, from
// its bundle.
func imageName(r *testkit.Rig, c *node.Container) string {
	r.T.Helper()
	ctx := testkit.NSContext(r.Ctx)
	loaded, err := r.Client().LoadContainer(ctx, c.ID)
	if err != nil {
		r.T.Fatal(err)
	}
	recorded, err := loaded.Spec(ctx)
	if err != nil {
		r.T.Fatal(err)
	}
	if _, err := r.Runtime().StartContainer(r.Ctx, &cri.StartContainerRequest{ContainerId: c.ID}); err != nil {
		r.T.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(r.Path("state"), "io.containerd.runtime.v2.task", node.Namespace, c.ID, "config.json"))
	var bundled specs.Spec
	if err == nil {
		err = json.Unmarshal(b, &bundled)
	}
	if err != nil {
		r.T.Fatal(err)
	}
	got := recorded.Annotations[upstream.ImageNameAnnotation]
	if bundle := bundled.Annotations[upstream.ImageNameAnnotation]; bundle != got {
		r.T.Errorf("the record of the container has the name %s, and its bundle %s", got, bundle)
	}
	return got
}

// wantCallersName checks that the CRI reports a container's image as it was named.
func wantCallersName(r *testkit.Rig, c *node.Container, sent node.ContainerOptions, tag string) {
	r.T.Helper()
	status, err := r.Runtime().ContainerStatus(r.Ctx, &cri.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
	if err != nil {
		r.T.Fatal(err)
	}
	if got := status.GetStatus().GetImage().GetImage(); got != tag && got != sent.Image {
		r.T.Errorf("ContainerStatus: got image %q", got)
	}
	if got := status.GetStatus().GetImage().GetUserSpecifiedImage(); got != "" && got != sent.UserImage {
		r.T.Errorf("ContainerStatus: got the name %q", got)
	}
	var info struct{ Config cri.ContainerConfig }
	if err := json.Unmarshal([]byte(status.GetInfo()["info"]), &info); err != nil {
		r.T.Fatal(err)
	}
	list, err := r.Runtime().ListContainers(r.Ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: c.ID}})
	if err != nil {
		r.T.Fatal(err)
	}
	for what, got := range map[string]*cri.ImageSpec{"ContainerStatus, verbose": info.Config.GetImage(), "ListContainers": list.GetContainers()[0].GetImage()} {
		if got.GetImage() != sent.Image || got.GetUserSpecifiedImage() != sent.UserImage || len(got.GetAnnotations()) > 0 {
			r.T.Errorf("%s: got image %v", what, got)
		}
	}
}
