package agree

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/testkit"
)

// TestAllImagesOfPod runs pods with an init container, a container whose image has a digest, and an image volume. Each tag
// has an ImagePin, and a reference with a digest and the sandbox image have none. The tags move before pods of the same
// ReplicaSet start on other nodes, which have the same ImagePins.
func TestAllImagesOfPod(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	const initTag, volumeTag = "team/init:v1", "team/data:v1"
	push := func(version string) map[string]string {
		t.Helper()
		digests := map[string]string{r.image(): r.push(version)}
		for _, ref := range []string{initTag, volumeTag} {
			digests[r.reg.Ref(ref)] = testkit.Push(t, r.reg, ref, r.app(ref+version)).String()
		}
		return digests
	}
	want := push("1")
	byDigest := testkit.Push(t, r.reg, "team/fixed:v1", r.app("fixed")).String()

	d := r.deployment("web", 1)
	spec := &d.Spec.Template.Spec
	spec.InitContainers = []core.Container{{Name: "init", Image: r.reg.Ref(initTag), Args: []string{"exit", "0"}}}
	spec.Containers = append(spec.Containers, core.Container{Name: "fixed", Image: r.reg.Ref("team/fixed@" + byDigest)})
	spec.Volumes = []core.Volume{{Name: "data", VolumeSource: core.VolumeSource{Image: &core.ImageVolumeSource{Reference: r.reg.Ref(volumeTag)}}}}
	spec.Containers[0].VolumeMounts = []core.VolumeMount{{Name: "data", MountPath: "/data"}}
	r.do("POST", r.apps("deployments"), d, nil)
	r.running("web", 1, rollout, "1")
	push("2")
	r.scale(r.apps("deployments", "web"), 3)

	for _, p := range r.running("web", 3, rollout, "1") {
		got := map[string]string{}
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			_, got[c.Name], _ = strings.Cut(c.ImageID, "@")
		}
		if want := map[string]string{"init": want[r.reg.Ref(initTag)], "c": want[r.image()], "fixed": byDigest}; !maps.Equal(got, want) {
			t.Errorf("pod %s on %s runs %v, want %v", p.Name, p.Spec.NodeName, got, want)
		}
	}
	got := map[string]string{}
	for _, p := range r.pins() {
		got[p.Spec.Image] = p.Spec.Digest
	}
	if !maps.Equal(got, want) || len(r.pins()) != len(want) {
		t.Errorf("the ImagePins are %v, want %v", got, want)
	}
}

// TestEphemeralContainers runs ephemeral containers in two pods of a ReplicaSet on two nodes. Their tag moves in between.
func TestEphemeralContainers(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	const debugTag = "team/debug:v1"
	r.push("1")
	r.do("POST", r.apps("deployments"), r.deployment("web", 2), nil)
	var digests []string
	for i, p := range r.running("web", 2, rollout, "1") {
		testkit.Push(t, r.reg, debugTag, r.app(fmt.Sprint("debug", i)))
		debug := core.EphemeralContainer{EphemeralContainerCommon: core.EphemeralContainerCommon{
			Name: "debug", Image: r.reg.Ref(debugTag), ImagePullPolicy: core.PullAlways,
		}}
		r.patch(r.core("pods", p.Name, "ephemeralcontainers"), map[string]any{"spec": map[string]any{"ephemeralContainers": []any{debug}}})
		await[core.Pod](t, r.core("pods"), appLabel+"=web", "an ephemeral container runs in "+p.Name, func(pods []core.Pod) bool {
			for _, now := range pods {
				if now.UID == p.UID && len(now.Status.EphemeralContainerStatuses) == 1 && now.Status.EphemeralContainerStatuses[0].State.Running != nil {
					_, digest, _ := strings.Cut(now.Status.EphemeralContainerStatuses[0].ImageID, "@")
					digests = append(digests, digest)
					return true
				}
			}
			return false
		})
	}
	if digests[0] == "" || digests[0] != digests[1] {
		t.Errorf("the ephemeral containers run %v, want one digest", digests)
	}
	if n := len(r.pins()); n != 2 {
		t.Errorf("got %d ImagePins, want that of the container and that of the ephemeral containers", n)
	}
}
