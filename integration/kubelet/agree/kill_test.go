package agree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/node"
)

// TestKill kills imagepin between the request to the registry, the creation of the ImagePin, and the node's record: in
// containerd, and as imagepin serve. The tag moves after each request. After the restart, there is one ImagePin, and the node
// runs its digest.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, mode := range []node.Mode{node.Plugin, node.Serve} {
		t.Run(string(mode), func(t *testing.T) { killClaims(t, mode) })
	}
}

func killClaims(t *testing.T, mode node.Mode) {
	t.Parallel()
	fail := filepath.Join(t.TempDir(), "failpoint")
	p := newPool(t, "kill", poolOptions{Options: pool.Options{
		Nodes: 1, Binary: "containerd-failpoints", Env: []string{"IMAGEPIN_FAILPOINT=@" + fail},
		Edit: func(_ int, o *node.Options) { o.Mode = mode },
	}})
	m := p.Members[0]
	for _, c := range []struct {
		point string
		// resolved is how often the tag is resolved in all.
		resolved int
	}{
		{"claim.create", 2}, // there is no ImagePin
		{"claim.created", 1},
		{"pin.write", 1},
		{"pin.written", 1},
	} {
		t.Run(c.point, func(t *testing.T) {
			r := newRig(t, p)
			_, digests := r.moving(4, 1)
			if err := os.WriteFile(fail+".new", []byte(c.point), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(fail+".new", fail); err != nil {
				t.Fatal(err)
			}
			r.do("POST", r.apps("deployments"), r.deployment("web", 1), nil)
			err := m.Wait(r.ctx)
			if died, _ := os.ReadFile(fail + ".died"); strings.TrimSpace(string(died)) != c.point {
				t.Fatalf("containerd died at %q: %v", died, err)
			}
			for _, f := range []string{fail, fail + ".died"} {
				if err := os.Remove(f); err != nil {
					t.Fatal(err)
				}
			}
			if err := m.Start(r.ctx); err != nil {
				t.Fatal(err)
			}
			pods := r.running("web", 1, rollout, "1")
			pin := r.agreed(pods, "")
			if want := digests[c.resolved-1]; pin.Spec.Digest != want {
				t.Errorf("the ImagePin has %s, want %s, the answer %d to a request for the tag", pin.Spec.Digest, want, c.resolved)
			}
			if n := len(r.pins()); n != 1 {
				t.Errorf("got %d ImagePins, want 1", n)
			}
			awaitPin(t, m, r.image(), meta.GetControllerOf(&pods[0]).UID, "is that of the cluster", settled(pin.Spec.Digest))
		})
	}
}
