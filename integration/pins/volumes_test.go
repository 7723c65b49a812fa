package pins

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPinOfImageVolume checks that a full cap does not evict a pin of scope node that only an image volume uses, also
// after a restart. Without the container, a new pin evicts it.
func TestPinOfImageVolume(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules + `
[plugins."io.containerd.imagepin.v1.images"]
max_pins_per_namespace = 1
`})
	full := testkit.Failure{Name: "PinLimitReached", Code: codes.ResourceExhausted}
	tool, _ := r.Push("free/tool:v1", images.Options{Version: "tool"}, images.HostPlatform())
	r.MustPull(tool, "")
	mounted, other := r.Reg.Ref("node/model:v1"), r.Reg.Ref("node/other:v1")
	model := r.Version("node/model:v1", "model")
	second := r.Version("node/other:v1", "other")
	pod, err := r.RunPod(r.Ctx, node.PodOptions{Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	pull := func(ref string) (string, error) { return r.PullWith(r.Ctx, ref, node.PullOptions{Pod: pod}) }
	id, err := pull(mounted)
	if err != nil {
		t.Fatal(err)
	}
	c, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: tool, Mounts: []*cri.Mount{{
		ContainerPath: "/volume", Readonly: true, Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: mounted},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := pull(other)
		full.Check(t, err, other, testkit.TargetOf(""))
		wantPins(r, mounted, map[string]string{"node": model})
		r.KillAndRestart(nil)
	}
	if err := c.Remove(r.Ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(other); err != nil {
		t.Errorf("pull that can evict the pin: %v", err)
	}
	wantPins(r, mounted, map[string]string{})
	wantPins(r, other, map[string]string{"node": second})
}

// TestStatusOfImageVolumes checks that ContainerStatus has the ID and the digest of the image that is mounted, which kubelet looks up
// for the status of the pod (KEP-5365): for a volume that kubelet names by ID, and for one that another client names by its tag, also after the tag and
// the pin have moved, and after a restart.
func TestStatusOfImageVolumes(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	ref := r.Reg.Ref("node/model:v1")
	tool, _ := r.Push("free/tool:v1", images.Options{Version: "tool"}, images.HostPlatform())
	digests := map[string]string{}
	for _, version := range []string{"one", "two"} {
		digests[version] = r.Version("node/model:v1", version)
		if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: ref, Digest: digests[version]}); err != nil {
			t.Fatal(err)
		}
		r.MustPull(tool, "native")
		id := r.MustPull(ref, "native")
		pod := r.MustPod("native")
		_, line, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Name: version, Image: tool, Args: []string{"cat", "/by-id/facts", "/by-tag/facts"}, Mounts: []*cri.Mount{
			{ContainerPath: "/by-id", Readonly: true, Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: ref}},
			{ContainerPath: "/by-tag", Readonly: true, Image: &cri.ImageSpec{Image: ref}},
		}})
		if err != nil || !strings.Contains(line, version) {
			t.Fatalf("the volumes of %s have %q, %v", version, line, err)
		}
	}
	check := func(when string) {
		t.Helper()
		list, err := r.Runtime().ListContainers(r.Ctx, &cri.ListContainersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.GetContainers()) != len(digests) {
			t.Errorf("%s: got %d containers", when, len(list.GetContainers()))
		}
		for _, c := range list.GetContainers() {
			status, err := r.Runtime().ContainerStatus(r.Ctx, &cri.ContainerStatusRequest{ContainerId: c.GetId()})
			if err != nil {
				t.Fatal(err)
			}
			want, volumes := digests[c.GetMetadata().GetName()], 0
			for _, m := range status.GetStatus().GetMounts() {
				spec := m.GetImage()
				if spec.GetImage() == "" {
					continue
				}
				volumes++
				looked, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: spec}) // as kubelet does
				if err != nil {
					t.Fatal(err)
				}
				img := looked.GetImage()
				if byDigest := strings.TrimSuffix(ref, ":v1") + "@" + want; spec.GetImageRef() != byDigest {
					t.Errorf("%s: %s of %s: got image_ref %q, want %s", when, m.GetContainerPath(), c.GetMetadata().GetName(), spec.GetImageRef(), byDigest)
				}
				if img.GetId() != spec.GetImage() || spec.GetUserSpecifiedImage() != ref || len(spec.GetAnnotations()) > 0 || !slices.Contains(img.GetRepoDigests(), strings.TrimSuffix(ref, ":v1")+"@"+want) {
					t.Errorf("%s: %s of %s: got %v, which is %v, want the ID of %s", when, m.GetContainerPath(), c.GetMetadata().GetName(), spec, img, want)
				}
			}
			if volumes != 2 {
				t.Errorf("%s: got %d image volumes", when, volumes)
			}
		}
	}
	check("after the start")
	r.KillAndRestart(nil)
	check("after a restart")
}
