package agree

import (
	"fmt"
	"os"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/kubelet/pool"
)

// outage returns how long the outage of TestOutage takes at least. It is in the environment variable IMAGEPIN_OUTAGE.
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("IMAGEPIN_OUTAGE")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("IMAGEPIN_OUTAGE: %v", err)
	}
	return d
}

// TestOutage cuts a node's imagepin off from the API server, and moves the tag again and again. New pods of a revision that
// the node knows run its digest. Those of a new revision run one digest, or wait, as configured. When the API server is back,
// the new revision has an ImagePin, and its pods run that digest.
func TestOutage(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"local", "fail"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			p := newPool(t, "outage-"+policy, poolOptions{
				Options: pool.Options{Nodes: 1}, timeout: "10s", cluster: fmt.Sprintf("unavailable = %q", policy),
			})
			r := newRig(t, p)
			m := p.Members[0]
			first := r.push("1")
			r.do("POST", r.apps("deployments"), r.deployment("known", 1), nil)
			known := r.running("known", 1, rollout, "1")
			r.agreed(known, "")

			m.Link.Stall()
			end := time.Now().Add(outage(t))
			r.do("POST", r.apps("deployments"), r.deployment("new", 1), nil)
			var unknown []core.Pod
			digest := ""
			for i := 2; i == 2 || time.Now().Before(end); i++ {
				last := r.push(fmt.Sprint(i))
				known = r.replace(known[0], "known", 1)
				r.wantDigest(known, first)
				if policy == "fail" {
					digest = last
					r.awaitWaiting("new", "ClusterUnavailable")
					continue
				}
				if unknown == nil {
					unknown = r.running("new", 1, rollout, "1")
					digest = digestOf(unknown[0])
				} else {
					unknown = r.replace(unknown[0], "new", 1)
				}
				r.wantDigest(unknown, digest)
			}
			if n := len(r.pins()); n != 1 {
				t.Errorf("got %d ImagePins during the outage, want that of the known revision", n)
			}

			if err := m.Link.Restore(); err != nil {
				t.Fatal(err)
			}
			if policy == "fail" {
				// After many failures, kubelet waits up to five minutes before it pulls for the same pod.
				r.do("DELETE", r.core("pods")+"?labelSelector="+appLabel+"=new", nil, nil)
			}
			unknown = r.running("new", 1, rollout, "1")
			r.wantDigest(unknown, digest)
			r.awaitPins(2)
			if pin := r.pinOf(meta.GetControllerOf(&unknown[0]).UID, ""); pin.Spec.Digest != digest {
				t.Errorf("the ImagePin has %s, want %s", pin.Spec.Digest, digest)
			}
		})
	}
}
