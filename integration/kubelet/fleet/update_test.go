package fleet

import (
	"context"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestUpdate applies another lock while a Deployment runs, without a registry. Its pods go on, and the status names their
// containers until they are restarted. A rollback does the same in the other direction.
func TestUpdate(t *testing.T) {
	t.Parallel()
	r := newRig(t, "update", node.Options{DiscardUnpackedLayers: true})
	old := r.push("shop/web:v1", "old")
	manifest := r.manifest("web.yaml")
	first := r.lock("first.yaml", manifest)
	firstBundle := r.bundle("first.tar.zst", first)
	moved := r.push("shop/web:v1", "moved")
	update := r.bundle("update.tar.zst", r.lock("second.yaml", manifest), "--since", first)
	r.Reg.Down()
	r.startNode()
	r.imagepin(0, []string{"apply", firstBundle}, "Applied lock")
	r.startKubelet(nil)
	r.kubectl("apply", "-f", manifest)
	pods := r.running("web", 2, old)
	r.imagepin(0, []string{"lock", "status"}, "0 run another digest than the lock")

	r.imagepin(0, []string{"apply", update}, "Applied lock", old[7:19], moved[7:19])
	r.wantDrift(pods, old)
	pods = r.restart(moved)

	r.imagepin(0, []string{"rollback"}, "Applied lock", moved[7:19], old[7:19])
	r.wantDrift(pods, moved)
	r.restart(old)
	r.imagepin(0, []string{"lock", "status"}, "from first.tar.zst, images from a bundle")
}

// wantDrift fails the test unless the pods of the Deployment are those of before, still run a digest without a restart, and the
// status of the lock names their containers and no others.
func (r *rig) wantDrift(before []core.Pod, digest string) {
	r.T.Helper()
	words := []string{"2 run another digest than the lock"}
	for i, p := range r.running("web", 2, digest) {
		words = append(words, r.name+"/"+p.Name+"  c  ")
		if n := p.Status.ContainerStatuses[0].RestartCount; n > 0 || p.UID != before[i].UID {
			r.T.Errorf("pod %s has restarted %d times, and was %s before", p.Name, n, before[i].Name)
		}
	}
	r.imagepin(10, []string{"lock", "status", "--no-trunc"}, words...)
}

// restart restarts the Deployment and waits until its pods run a digest, and the status of the lock has no other container. It
// returns the pods.
func (r *rig) restart(digest string) []core.Pod {
	r.T.Helper()
	r.kubectl("rollout", "restart", "deployment/web")
	r.kubectl("rollout", "status", "deployment/web")
	pods := r.running("web", 2, digest)
	testkit.EventuallyIn(r.T, patience, "no container runs another digest than the lock", func(context.Context) (bool, error) {
		out, code := r.Operator("lock", "status")
		return code == 0 && strings.Contains(out, "0 run another digest than the lock"), nil
	})
	return pods
}

// event waits for an event of a pod.
func (r *rig) event(pod string, wanted func(core.Event) bool) {
	r.T.Helper()
	testkit.EventuallyIn(r.T, patience, "pod "+pod+" has the event", func(ctx context.Context) (bool, error) {
		var list core.EventList
		err := kube.Do(ctx, "GET", "/api/v1/namespaces/"+r.name+"/events?fieldSelector=involvedObject.name="+pod, nil, &list)
		for _, e := range list.Items {
			if wanted(e) {
				return true, err
			}
		}
		return false, err
	})
}
