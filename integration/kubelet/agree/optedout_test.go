package agree

import (
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// sidecar is the tag of an image for which pods may override the rules.
const sidecar = "open/sidecar:v1"

// allowOverrides allows pods to override the rules for the images below open/.
func allowOverrides(_ int, o *node.Options) {
	o.Extra += `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/open/**"]
allow_pod_override = true
`
}

// TestSidecarIsOptedOut moves the tags of a pod's image and of its sidecar, which the pod template opts out. The sidecar moves with its
// tag on each node, and has no ImagePin. The image has that of the ReplicaSet.
func TestSidecarIsOptedOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	push := func(version string) string { return testkit.Push(t, r.reg, sidecar, r.app(version)).String() }
	d := r.deployment("web", 1)
	d.Spec.Template.Annotations["io.imagepin.version-consistency"] = "**/sidecar:*=off"
	containers := &d.Spec.Template.Spec.Containers
	*containers = append(*containers, core.Container{Name: "sidecar", Image: r.host + "/" + sidecar, ImagePullPolicy: core.PullAlways})
	first, firstSidecar := r.push("1"), push("sidecar 1")
	r.do("POST", r.apps("deployments"), d, nil)
	before := r.running("web", 1, rollout, "1")
	r.wantDigest(before, first)

	r.push("2")
	secondSidecar := push("sidecar 2")
	r.scale(r.apps("deployments", "web"), 3)
	pods := r.running("web", 3, rollout, "1")
	r.agreed(pods, "")
	if pins := r.pins(); len(pins) != 1 {
		t.Errorf("got ImagePins %v, want one", pins)
	}
	for _, p := range pods {
		want := secondSidecar
		if p.Name == before[0].Name {
			want = firstSidecar
		}
		if got := sidecarOf(p); got != want {
			t.Errorf("the sidecar of pod %s on %s runs %s, want %s", p.Name, p.Spec.NodeName, got, want)
		}
	}
}

// sidecarOf returns the digest of the image that the sidecar of a pod runs.
func sidecarOf(p core.Pod) (digest string) {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == "sidecar" {
			_, digest, _ = strings.Cut(c.ImageID, "@")
		}
	}
	return digest
}
