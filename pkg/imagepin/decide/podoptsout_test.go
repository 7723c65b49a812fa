package decide

import (
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// TestClusterPodOptsImageOut finds and claims no ImagePin for an image that a pod opts out, also if the cluster has one. The other
// images of the pod have that of the revision.
func TestClusterPodOptsImageOut(t *testing.T) {
	c := newFakeCluster()
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Workload, AllowPodOverride: true})
	e.join(c, false)
	out := webPod("web-1-a")
	out.Annotations = map[string]string{policy.ConsistencyAnnotation: e.ref.String() + "=off"}
	e.wantPull(t, out, "old")
	if len(c.pins) != 0 || c.asked != 0 || len(e.pins.List()) != 0 {
		t.Errorf("an image that is opted out: got ImagePins %v, %d requests for them, pins %v", c.pins, c.asked, e.pins.List())
	}
	c.pins["uid-1 "+e.ref.String()] = roots["new"].Digest
	e.wantPull(t, out, "old") // what the tag resolves to
	others := webPod("web-1-b")
	others.Annotations = map[string]string{policy.ConsistencyAnnotation: "registry.example/other/*:*=off"}
	e.wantPull(t, others, "new")
	e.wantCopy(t, "new")
	e.wantPull(t, out, "old")
}
