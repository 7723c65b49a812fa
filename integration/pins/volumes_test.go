package pins

import (
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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
