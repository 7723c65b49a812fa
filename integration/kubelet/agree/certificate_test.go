package agree

import (
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/kubelet/pool"
)

// TestCertificateRotation replaces the node's client certificate while imagepin runs. With an expired certificate, the node
// pins provisionally. With the next one, it claims the pin.
func TestCertificateRotation(t *testing.T) {
	t.Parallel()
	p := newPool(t, "certificate", poolOptions{Options: pool.Options{Nodes: 1}})
	r := newRig(t, p)
	m := p.Members[0]
	rotate := func(expires time.Time) {
		t.Helper()
		if err := kube.WriteNodeCertificate(m.Certificate, m.Name, expires); err != nil {
			t.Fatal(err)
		}
	}
	r.push("1")
	r.do("POST", r.apps("deployments"), r.deployment("before", 1), nil)
	r.agreed(r.running("before", 1, rollout, "1"), "")

	rotate(time.Now().Add(-time.Minute))
	second := r.push("2")
	r.do("POST", r.apps("deployments"), r.deployment("expired", 1), nil)
	pods := r.running("expired", 1, rollout, "1")
	r.wantDigest(pods, second)
	if n := len(r.pins()); n != 1 {
		t.Errorf("got %d ImagePins of a node with an expired certificate, want 1", n)
	}

	rotate(time.Now().Add(time.Hour))
	r.push("3")
	r.do("POST", r.apps("deployments"), r.deployment("rotated", 1), nil)
	r.agreed(r.running("rotated", 1, rollout, "1"), "")
	r.awaitPins(3)
	r.agreed(pods, "")
	awaitPin(t, m, r.image(), meta.GetControllerOf(&pods[0]).UID, "is that of the cluster", settled(second))
}
