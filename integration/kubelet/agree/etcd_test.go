package agree

import (
	"context"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestEtcdRestart kills etcd while the first pods of a ReplicaSet start on two nodes, which get another digest each. One node
// pins provisionally, and the other one does not pull. They agree when etcd is back, and an ImagePin from before is the same.
// The test does not run in parallel with others.
func TestEtcdRestart(t *testing.T) {
	const timeout = "5s"
	p := newPool(t, "etcd", poolOptions{timeout: timeout, Options: pool.Options{Nodes: 2, Edit: func(i int, o *node.Options) {
		if i == 1 {
			o.Extra = pool.Claims(timeout, `unavailable = "fail"`)
		}
	}}})
	r := newRig(t, p)
	local, strict := p.Members[0], p.Members[1]
	first := r.push("1")
	r.do("POST", r.apps("deployments"), r.deployment("known", 2), nil)
	r.wantDigest(r.running("known", 2, rollout, "1"), first)
	known := r.awaitPins(1)[0]

	race, _ := r.moving(2, 3)
	r.do("POST", r.apps("deployments"), r.deployment("web", 2), nil)
	select {
	case <-race.last:
	case <-r.ctx.Done():
		t.Fatal("the nodes do not resolve the tag")
	}
	var owners apps.ReplicaSetList
	r.do("GET", r.apps("replicasets")+"?labelSelector="+appLabel+"=web", nil, &owners)
	owner := owners.Items[0].UID
	earlier := len(strict.Kubelet.Proxy.Calls("PullImage"))
	if err := kube.KillEtcd(); err != nil {
		t.Fatal(err)
	}
	race.release()
	awaitPin(t, local, r.image(), owner, "is provisional", provisional)
	awaitRefusal(t, strict, earlier, "ClusterUnavailable")
	if err := kube.StartEtcd(r.ctx); err != nil {
		t.Fatal(err)
	}

	r.restartPull("web", strict)
	pods := r.running("web", 2, rollout, "1")
	r.awaitPins(2)
	pin := r.pinOf(owner, "")
	for _, m := range p.Members {
		awaitPin(t, m, r.image(), owner, "is that of the cluster", settled(pin.Spec.Digest))
	}
	r.wantDigest([]core.Pod{on(t, pods, strict)}, pin.Spec.Digest)
	r.wantDigest(r.replace(on(t, pods, local), "web", 2), pin.Spec.Digest)
	if again := r.pinOf(known.Spec.Owner.UID, ""); again.UID != known.UID || again.Spec.Digest != first {
		t.Errorf("got %+v, want the ImagePin from before the restart: %+v", again, known)
	}
}

// awaitRefusal waits until a node refuses to pull for a reason, after the first n calls of PullImage.
func awaitRefusal(t *testing.T, m *pool.Member, n int, reason string) {
	t.Helper()
	testkit.EventuallyIn(t, patience, m.Name+" refuses to pull: "+reason, func(context.Context) (bool, error) {
		for _, c := range m.Kubelet.Proxy.Calls("PullImage")[n:] {
			if c.Err != nil && strings.Contains(c.Err.Error(), reason) {
				return true, nil
			}
		}
		return false, nil
	})
}

// restartPull deletes the pods of a workload on a node. After a failure, kubelet waits up to five minutes before it pulls for
// the same pod.
func (r *rig) restartPull(app string, m *pool.Member) {
	r.t.Helper()
	r.do("DELETE", r.core("pods")+"?labelSelector="+appLabel+"="+app+"&fieldSelector=spec.nodeName="+m.Name, nil, nil)
}
