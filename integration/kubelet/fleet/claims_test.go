package fleet

import (
	"bufio"
	"strconv"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/node"
)

// TestClaims runs two Deployments on a node that pins the images of workloads in the Kubernetes API. The lock decides the
// image that it names: its pods run what it has, although the tag has moved, and no ImagePin is requested. The other image has
// an ImagePin.
func TestClaims(t *testing.T) {
	t.Parallel()
	r := newRig(t, "claims", node.Options{Extra: pool.Claims("30s", "")})
	if _, err := kube.WriteNodeKubeconfig(r.Path("imagepin-api", "kubeconfig"), r.name, ""); err != nil {
		t.Fatal(err)
	}
	locked := r.push("shop/web:v1", "locked")
	manifest := r.manifest("web.yaml")
	lock := r.lock("lock.yaml", manifest)
	r.push("shop/web:v1", "moved")
	other := r.push("shop/other:v1", "other")
	r.startNode()
	r.imagepin(0, []string{"apply", lock}, "Applied lock")
	before := r.pinRequests()
	r.startKubelet(nil)
	r.kubectl("apply", "-f", manifest)
	r.running("web", 2, locked)
	r.kubectl("rollout", "restart", "deployment/web")
	r.kubectl("rollout", "status", "deployment/web")
	r.running("web", 2, locked)
	if n := r.pinRequests(); n != before {
		t.Errorf("got %d requests for ImagePins, want none", n-before)
	}
	manifest = r.manifest("other.yaml")
	r.kubectl("apply", "-f", manifest)
	r.running("other", 1, other)
	if n := r.pinRequests(); n == before {
		t.Error("got no request for an ImagePin of the image that is not locked")
	}
	if pins := r.imagePins(); len(pins) != 1 || pins[0].Spec.Image != r.Reg.Ref("shop/other:v1") || pins[0].Spec.Digest != other {
		t.Errorf("got ImagePins %v, want one for %s", pins, r.Reg.Ref("shop/other:v1"))
	}
	r.imagepin(0, []string{"lock", "status"}, "0 run another digest than the lock")

	// A lock also precedes an ImagePin, which applies again without the lock.
	moved := r.push("shop/other:v1", "moved")
	r.imagepin(0, []string{"apply", r.lock("other.lock.yaml", manifest)}, "Applied lock")
	before = r.pinRequests()
	r.kubectl("delete", "pods", "-l", "app=other")
	r.running("other", 1, moved)
	if n := r.pinRequests(); n != before {
		t.Errorf("got %d requests for ImagePins while the lock decides, want none", n-before)
	}
	r.imagepin(0, []string{"lock", "rm"}, "Removed the lock")
	r.kubectl("delete", "pods", "-l", "app=other")
	r.running("other", 1, other)
}

// pinRequests returns the number of requests for single ImagePins. Only the node of TestClaims makes such requests.
func (r *rig) pinRequests() (n int) {
	r.T.Helper()
	resp, err := kube.Send(r.Ctx, "GET", "/metrics", nil)
	if err != nil {
		r.T.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		series, value, ok := strings.Cut(lines.Text(), "} ")
		if !ok || !strings.HasPrefix(series, "apiserver_request_total{") || !strings.Contains(series, `resource="imagepins"`) ||
			!strings.Contains(series, `scope="resource"`) {
			continue
		}
		count, err := strconv.Atoi(value)
		if err != nil {
			r.T.Fatalf("%s: %v", lines.Text(), err)
		}
		n += count
	}
	if err := lines.Err(); err != nil {
		r.T.Fatal(err)
	}
	return n
}

// imagePins returns the ImagePins of the namespace.
func (r *rig) imagePins() []v1alpha1.ImagePin {
	r.T.Helper()
	var list v1alpha1.ImagePinList
	r.do("GET", "/apis/imagepin.io/v1alpha1/namespaces/"+r.name+"/imagepins", nil, &list)
	return list.Items
}
