package agree

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/node"
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
	lock := filepath.Join(t.TempDir(), "images.lock")
	text := fmt.Sprintf("apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages:\n- image: %s/%s@%s\n  annotations: {kbld.carvel.dev/id: %q}\n",
		r.host, repository, locked, r.image())
	if err := os.WriteFile(lock, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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

// seed runs kubectl imagepin seed in the namespace.
func (r *rig) seed(args ...string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.ctx, filepath.Join(node.BinDir(), "kubectl-imagepin"), append([]string{"seed"}, args...)...)
	cmd.Args = append(cmd.Args, "--namespace="+r.ns, "--kubeconfig="+kube.Kubeconfig())
	cmd.Env = []string{"HOME=" + r.t.TempDir()}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("kubectl imagepin seed: %v: %s; run make kubectl-imagepin", err, out)
	}
}
