package pins

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestCheckLooksAtPins deletes the record of a pin. A check finds it, a repair writes the record again, and the pin
// applies after a restart.
func TestCheckLooksAtPins(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	old := r.Version("node/app:v1", "old")
	ref := r.Reg.Ref("node/app:v1")
	r.MustPull(ref, "")
	if out, ok := r.Command("check"); !ok {
		t.Fatalf("check: got findings:\n%s", out)
	}
	if out, ok := r.Command("pin", "ls", "-o", "json"); !ok || !strings.Contains(out, ref) || !strings.Contains(out, old) {
		t.Errorf("pin ls: got\n%s", out)
	}
	name := "node/" + ref
	if err := r.Client().ImageService().Delete(namespaces.WithNamespace(r.Ctx, "imagepin"), name); err != nil {
		t.Fatal(err)
	}
	out, ok := r.Command("check")
	if ok || !strings.Contains(out, name) || !strings.Contains(out, "its record is gone") || !strings.Contains(out, "repair its record") {
		t.Errorf("check without the record: got\n%s", out)
	}
	if out, ok = r.Command("check", "--repair"); !ok || !strings.Contains(out, "record repaired") || !strings.Contains(out, "1 differ, 1 repaired") {
		t.Errorf("check --repair: got\n%s", out)
	}
	if out, ok = r.Command("check"); !ok {
		t.Errorf("check after the repair: got\n%s", out)
	}
	r.KillAndRestart(nil)
	wantPins(r, ref, map[string]string{"node": old})
}

// TestPinOfAWorkloadWithoutContainersStays checks that the pin of a pod without containers is in use, and not evicted
// at the cap, while the sandbox of the pod exists.
func TestPinOfAWorkloadWithoutContainersStays(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules + `
[plugins."io.containerd.imagepin.v1.images"]
max_pins_per_namespace = 1
`})
	one := r.Version("workload/app:v1", "one")
	ref := r.Reg.Ref("workload/app:v1")
	pod := func(hash string) *node.Pod {
		t.Helper()
		p, err := r.RunPod(r.Ctx, revision("shop", "pod-template-hash", hash))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first, second := pod("a"), pod("b")
	pull := func(p *node.Pod) error {
		_, err := r.PullWith(r.Ctx, ref, node.PullOptions{Pod: p})
		return err
	}
	if err := pull(first); err != nil {
		t.Fatal(err)
	}
	full := testkit.Failure{Name: "PinLimitReached", Code: codes.ResourceExhausted}
	full.Check(t, pull(second), ref, testkit.TargetOf(""))
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=a": one})
	r.MustRemovePod(first)
	if err := pull(second); err != nil {
		t.Error(err)
	}
	wantPins(r, ref, map[string]string{"workload/shop/pod-template-hash=b": one})
}
