package integration

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/node"
)

// TestCheckLooksAtPins takes the record of a pin away: a check finds it, a repair writes it again, and it is in force after a restart.
func TestCheckLooksAtPins(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true, Extra: consistencyRules})
	old := r.version("node/app:v1", "old")
	ref := r.reg.Ref("node/app:v1")
	r.pull(ref, "")
	if out, ok := r.imagepin("check"); !ok {
		t.Fatalf("a check finds:\n%s", out)
	}
	if out, ok := r.imagepin("pin", "ls", "-o", "json"); !ok || !strings.Contains(out, ref) || !strings.Contains(out, old) {
		t.Errorf("the pins are:\n%s", out)
	}
	name := "node/" + ref
	if err := r.Client().ImageService().Delete(namespaces.WithNamespace(r.ctx, "imagepin"), name); err != nil {
		t.Fatal(err)
	}
	out, ok := r.imagepin("check")
	if ok || !strings.Contains(out, name) || !strings.Contains(out, "its record is gone") || !strings.Contains(out, "write its record again") {
		t.Errorf("a check says:\n%s", out)
	}
	if out, ok = r.imagepin("check", "--repair"); !ok || !strings.Contains(out, "record written again") || !strings.Contains(out, "1 differ, 1 repaired") {
		t.Errorf("a repair says:\n%s", out)
	}
	if out, ok = r.imagepin("check"); !ok {
		t.Errorf("after the repair:\n%s", out)
	}
	r.crash(nil)
	r.wantPins(ref, map[string]string{"node": old})
}

// TestPinOfAWorkloadWithoutContainersStays fills a cap by a pod whose containers are still to come: its pin is in use since its sandbox runs.
func TestPinOfAWorkloadWithoutContainersStays(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Extra: consistencyRules + `
[plugins."io.containerd.imagepin.v1.images"]
max_pins_per_namespace = 1
`})
	one := r.version("workload/app:v1", "one")
	ref := r.reg.Ref("workload/app:v1")
	pod := func(hash string) *node.Pod {
		t.Helper()
		p, err := r.RunPod(r.ctx, revision("shop", "pod-template-hash", hash))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first, second := pod("a"), pod("b")
	pull := func(p *node.Pod) error {
		_, err := r.PullWith(r.ctx, ref, node.PullOptions{Pod: p})
		return err
	}
	if err := pull(first); err != nil {
		t.Fatal(err)
	}
	full := failure{name: "PinLimitReached", code: codes.ResourceExhausted}
	full.check(t, pull(second), ref, targetOf(""))
	r.wantPins(ref, map[string]string{"workload/shop/pod-template-hash=a": one})
	r.removePod(first)
	if err := pull(second); err != nil {
		t.Error(err)
	}
	r.wantPins(ref, map[string]string{"workload/shop/pod-template-hash=b": one})
}
