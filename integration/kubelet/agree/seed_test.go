package agree

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestSeed seeds the Deployments of two namespaces, as if they were two clusters, from one lock before their pods start. The
// tag has moved since. All pods run the digest of the lock. A Deployment that is not seeded
// runs the new digest. Kubernetes deletes the ImagePins with their owners.
func TestSeed(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	other := newRig(t, three)
	other.reg, other.host = r.reg, r.host
	locked := r.push("1")
	lock := r.lock(locked)
	moved := r.push("2")

	for _, r := range []*rig{r, other} {
		r.do("POST", r.apps("deployments"), r.deployment("web", 0), nil)
		r.seed(lock, "deployment/web", "--wait")
	}
	r.do("POST", r.apps("deployments"), r.deployment("unseeded", 1), nil)
	r.wantDigest(r.running("unseeded", 1, rollout, "1"), moved)
	for _, r := range []*rig{r, other} {
		r.scale(r.apps("deployments", "web"), 3)
		pods := r.running("web", 3, rollout, "1")
		r.wantDigest(pods, locked)
		if nodes := nodesOf(pods); len(nodes) != 3 {
			t.Errorf("the pods run on %v, want three nodes", nodes)
		}
		if pin := r.pinOf(pods[0].OwnerReferences[0].UID, ""); pin.Spec.Digest != locked || pin.Spec.By != nil {
			t.Errorf("got ImagePin %+v, want that of the lock", pin.Spec)
		}
	}

	other.do("DELETE", other.apps("deployments", "web"), nil, nil)
	await[v1alpha1.ImagePin](t, pinsPath(other.ns), "", "the ImagePins are deleted", func(pins []v1alpha1.ImagePin) bool { return len(pins) == 0 })
}

// TestSeedRollout changes the pod templates of a Deployment and a DaemonSet with running pods, while a quota permits no new
// pods. It seeds the new revisions, and then deletes the quota. The new pods run the digest of the lock.
func TestSeedRollout(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	first := r.push("1")
	d := r.deployment("web", 3)
	d.Spec.Strategy.RollingUpdate = &apps.RollingUpdateDeployment{MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(1))}
	d.Spec.Strategy.Type = apps.RollingUpdateDeploymentStrategyType
	r.do("POST", r.apps("deployments"), d, nil)
	r.wantDigest(r.running("web", 3, rollout, "1"), first)
	locked := r.push("2")
	lock := r.lock(locked)
	r.push("3")

	// As docs/kubectl.md says.
	r.run(cluster.Bin("kubectl"), "create", "quota", "seed", "--hard=pods=0")
	r.run(cluster.Bin("kubectl"), "wait", "resourcequota/seed", "--for=jsonpath={.status.hard.pods}=0", "--timeout="+patience.String())
	testkit.EventuallyIn(t, patience, "the quota permits no new pods", func(ctx context.Context) (bool, error) {
		probe := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "probe"}, Spec: r.template("probe").Spec}
		err := kube.Do(ctx, "POST", r.core("pods")+"?dryRun=All", probe, nil)
		if apierrors.IsForbidden(err) {
			return true, nil
		}
		return false, err
	})
	r.roll(r.apps("deployments", "web"), rollout, "2")
	daemons := &apps.DaemonSet{ObjectMeta: meta.ObjectMeta{Name: "agent"}, Spec: apps.DaemonSetSpec{Selector: selector("agent"), Template: r.template("agent")}}
	daemons.Spec.Template.Spec.TopologySpreadConstraints = nil
	r.do("POST", r.apps("daemonsets"), daemons, nil)
	r.seed(lock, "deployment/web", "daemonset/agent", "--wait")
	// The old pods run.
	r.wantDigest(r.running("web", 3, rollout, "1"), first)
	r.run(cluster.Bin("kubectl"), "delete", "quota", "seed")
	r.wantDigest(r.running("web", 3, rollout, "2"), locked)
	r.wantDigest(r.running("agent", 3, rollout, "1"), locked)
}

// lock writes a lock with a digest of the tag, and returns its path.
func (r *rig) lock(digest string) string {
	r.t.Helper()
	path := filepath.Join(r.t.TempDir(), "images.lock")
	text := fmt.Sprintf("apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages:\n- image: %s/%s@%s\n  annotations: {kbld.carvel.dev/id: %q}\n",
		r.host, repository, digest, r.image())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// seed runs kubectl imagepin seed in the namespace.
func (r *rig) seed(args ...string) {
	r.t.Helper()
	r.run(filepath.Join(node.BinDir(), "kubectl-imagepin"), append([]string{"seed"}, args...)...)
}

// run runs a command in the namespace.
func (r *rig) run(name string, args ...string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.ctx, name, append(args, "--namespace="+r.ns, "--kubeconfig="+kube.Kubeconfig())...)
	cmd.Env = []string{"HOME=" + r.t.TempDir()}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v: %s; run make kubectl-imagepin and hack/kubernetes-binaries.sh", name, err, out)
	}
}
