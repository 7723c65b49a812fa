package kubelet

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/versions/matrix"
)

// difference is what a kubelet does otherwise than the newest one. docs/kubernetes.md says so.
type difference struct {
	// gates are feature gates without which kubelet does not run the pods of TestKubelets.
	gates []string
	// noSecrets means that kubelet does not record by default which secrets have pulled an image.
	noSecrets bool
}

// differences has the kubelets that differ, by their minor version. The calls of all kubelets are the same.
var differences = map[string]difference{
	"1.34": {gates: []string{"ImageVolume"}, noSecrets: true},
}

// TestKubelets runs a part of TestPods with each version of kubelet that works with this API server, with both modes, and
// with the gate off and on. Then it kills containerd and imagepin serve, and runs a pinned revision without the registry.
// make test-kubelets runs it.
func TestKubelets(t *testing.T) {
	t.Parallel()
	all, err := matrix.Kubelets(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for minor := range differences {
		if !slices.ContainsFunc(all, func(k matrix.Kubelet) bool { return k.Minor == minor }) {
			t.Errorf("there is no kubelet %s, but it has differences", minor)
		}
	}
	for _, k := range all {
		// One version after another, because each has four nodes.
		t.Run(k.Minor, func(t *testing.T) {
			for _, mode := range []node.Mode{node.Plugin, node.Serve} {
				for _, gate := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s gate=%t", mode, gate), func(t *testing.T) {
						t.Parallel()
						testKubelet(t, k, mode, gate)
					})
				}
			}
		})
	}
}

func testKubelet(t *testing.T, k matrix.Kubelet, mode node.Mode, gate bool) {
	gates := map[string]bool{cluster.HandlerGate: gate}
	for _, name := range differences[k.Minor].gates {
		gates[name] = true
	}
	name := fmt.Sprintf("kubelet-%s-%s-%t", k.Minor, mode, gate)
	r := newRig(t, name, node.Options{Mode: mode, Extra: policy}, cluster.KubeletOptions{
		Dir: k.Dir, Config: map[string]any{"featureGates": gates},
	})
	status, err := r.k.Status(r.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := status.NodeInfo.KubeletVersion; got != k.Version {
		t.Fatalf("got kubelet %s, want %s", got, k.Version)
	}
	r.Reg.SetAuth(access)
	// One class after another, and all at once.
	some := orders()[len(orders())-2:]
	t.Run("cases", func(t *testing.T) {
		for name, test := range map[string]func(*kubeletRig){
			"orders":   func(r *kubeletRig) { r.runOrders(some) },
			"never":    (*kubeletRig).testNever,
			"volumes":  (*kubeletRig).testImageVolumes,
			"private":  func(r *kubeletRig) { r.runPrivate([]string{second}, !differences[k.Minor].noSecrets) },
			"versions": (*kubeletRig).testVersions,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(r.in(t))
			})
		}
	})
	if t.Failed() {
		return
	}
	t.Run("wire", func(t *testing.T) { r.in(t).testWire(gate) })
	t.Run("kill", func(t *testing.T) { r.in(t).testKill(some) })
	t.Run("away", func(t *testing.T) { r.in(t).testAway() })
}
