package agree

import (
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/pool"
)

// TestUnreachable cuts a node's imagepin off from the API server: at first its packets are dropped, later they are refused.
// The node pins new revisions provisionally, and claims them later. Where another node was first, the pin moves to its digest. A revision that the node knows starts without
// the API server, also after a restart.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	p := newPool(t, "local", poolOptions{Options: pool.Options{Nodes: 2}, timeout: "5s"})
	r := newRig(t, p)
	a, b := p.Members[0], p.Members[1]
	cordon(t, b, true)

	a.Link.Stall()
	first := r.push("1")
	r.do("POST", r.apps("deployments"), r.deployment("web", 1), nil)
	pods := r.running("web", 1, rollout, "1")
	r.wantDigest(pods, first)
	awaitPin(t, a, r.image(), "", "is provisional", provisional)
	if pins := r.pins(); len(pins) > 0 {
		t.Fatalf("got ImagePins %v of a node without the API server", pins)
	}
	if err := a.Link.Restore(); err != nil {
		t.Fatal(err)
	}
	r.awaitPins(1)
	r.agreed(pods, "")
	awaitPin(t, a, r.image(), meta.GetControllerOf(&pods[0]).UID, "is not provisional", settled(first))

	// The claim loses.
	a.Link.Cut()
	second := r.push("2")
	r.do("POST", r.apps("deployments"), r.deployment("other", 1), nil)
	r.wantDigest(r.running("other", 1, rollout, "1"), second)
	third := r.push("3")
	cordon(t, b, false)
	r.scale(r.apps("deployments", "other"), 2)
	pods = r.running("other", 2, rollout, "1")
	r.wantDigest([]core.Pod{on(t, pods, a)}, second)
	r.wantDigest([]core.Pod{on(t, pods, b)}, third)
	if err := a.Link.Restore(); err != nil {
		t.Fatal(err)
	}
	awaitPin(t, a, r.image(), meta.GetControllerOf(&pods[0]).UID, "moves to that of the other node", settled(third))
	r.awaitEvent(meta.GetControllerOf(&pods[0]), "ImageClaimLost")
	pods = r.replace(on(t, pods, a), "other", 2)
	r.wantDigest(pods, third)
	r.agreed([]core.Pod{on(t, pods, b)}, "")

	// A known pin.
	a.Link.Cut()
	r.push("4")
	if err := a.Restart(r.ctx, nil); err != nil {
		t.Fatal(err)
	}
	pods = r.replace(on(t, pods, a), "other", 2)
	r.wantDigest([]core.Pod{on(t, pods, a), on(t, pods, b)}, third)
}

// TestUnreachablePrivate loses the claim of a provisional pin of a private image, for which the node has no credential of
// its own. The next pod pulls the digest of the ImagePin with its secret, and no provisional pin is left.
func TestUnreachablePrivate(t *testing.T) {
	t.Parallel()
	p := newPool(t, "private", poolOptions{Options: pool.Options{Nodes: 2}})
	r := newRig(t, p)
	r.private()
	a, b := p.Members[0], p.Members[1]
	cordon(t, b, true)
	a.Link.Cut()
	first := r.push("1")
	d := r.deployment("web", 1)
	d.Spec.Template.Spec.ImagePullSecrets = alice
	r.do("POST", r.apps("deployments"), d, nil)
	r.wantDigest(r.running("web", 1, rollout, "1"), first)
	second := r.push("2")
	cordon(t, b, false)
	r.scale(r.apps("deployments", "web"), 2)
	pods := r.running("web", 2, rollout, "1")
	if err := a.Link.Restore(); err != nil {
		t.Fatal(err)
	}
	// The node asks the API server again after a pause, which is longer the longer it was unreachable.
	for digestOf(on(t, pods, a)) != second {
		pods = r.replace(on(t, pods, a), "web", 2)
	}
	r.wantDigest(pods, second)
	awaitPin(t, a, r.image(), "", "is that of the cluster", settled(second))
	r.awaitEvent(meta.GetControllerOf(&pods[0]), "ImageClaimLost")
}

// awaitWaiting waits until a pod of a workload does not run for a reason.
func (r *rig) awaitWaiting(app, reason string) {
	r.t.Helper()
	what := "a pod of " + app + " waits because of " + reason
	await[core.Pod](r.t, r.core("pods"), appLabel+"="+app, what, func(pods []core.Pod) bool {
		for _, p := range pods {
			for _, c := range p.Status.ContainerStatuses {
				if w := c.State.Waiting; w != nil && strings.Contains(w.Message, reason) {
					return true
				}
			}
		}
		return false
	})
}

// awaitPins waits until the namespace has n ImagePins.
func (r *rig) awaitPins(n int) []v1alpha1.ImagePin {
	r.t.Helper()
	return await[v1alpha1.ImagePin](r.t, pinsPath(r.ns), "", "the ImagePins are created", func(pins []v1alpha1.ImagePin) bool { return len(pins) == n })
}

// TestUnreachableFail is TestUnreachable for a node that does not pin provisionally: the pod waits.
func TestUnreachableFail(t *testing.T) {
	t.Parallel()
	p := newPool(t, "fail", poolOptions{Options: pool.Options{Nodes: 1}, cluster: `unavailable = "fail"`})
	r := newRig(t, p)
	link := p.Members[0].Link
	link.Cut()
	first := r.push("1")
	r.do("POST", r.apps("deployments"), r.deployment("web", 1), nil)
	r.awaitWaiting("web", "ClusterUnavailable")
	if err := link.Restore(); err != nil {
		t.Fatal(err)
	}
	pods := r.running("web", 1, rollout, "1")
	r.wantDigest(pods, first)
	r.agreed(pods, "")
}

// TestServerRestart kills the API server while the first pods of a ReplicaSet start on three nodes, which get another
// digest each. The nodes agree when the API server is back. It does not run in parallel with others.
func TestServerRestart(t *testing.T) {
	r := newRig(t, three)
	race, _ := r.moving(3, 4)
	r.do("POST", r.apps("deployments"), r.deployment("web", 3), nil)
	select {
	case <-race.last:
	case <-r.ctx.Done():
		t.Fatal("the nodes do not resolve the tag")
	}
	if err := kube.KillServer(); err != nil {
		t.Fatal(err)
	}
	race.release()
	for _, m := range three.Members {
		awaitPin(t, m, r.image(), "", "is provisional", provisional)
	}
	if err := kube.StartServer(r.ctx); err != nil {
		t.Fatal(err)
	}
	pods := r.running("web", 3, rollout, "1")
	pin := r.awaitPins(1)[0]
	for _, m := range three.Members {
		awaitPin(t, m, r.image(), pin.Spec.Owner.UID, "is that of the cluster", settled(pin.Spec.Digest))
	}
	for _, m := range three.Members {
		pods = r.replace(on(t, pods, m), "web", 3)
	}
	r.wantDigest(pods, pin.Spec.Digest)
}
