package kubectl

import (
	"fmt"
	"testing"
)

func TestRm(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 1)
	old := run(t, ns, 1, digestA)[0]
	oldPin := api.claim(t, old, image, digestA)
	current := rollOut(t, ns, "web", old, digestA)
	pins := []string{api.claim(t, current, image, digestA).Name, api.claim(t, current, image+"-debug", digestB).Name}
	deleted := func(name, suffix string) string {
		return fmt.Sprintf("imagepin.imagepin.io/%s deleted from %s namespace%s\n", name, ns, suffix)
	}

	if out := kubectl.must(t, ns, "rm", oldPin.Name, "--dry-run=client"); out != deleted(oldPin.Name, " (dry run)") {
		t.Errorf("got %q", out)
	}
	if out := kubectl.must(t, ns, "rm", oldPin.Name, "--dry-run=server"); out != deleted(oldPin.Name, " (server dry run)") {
		t.Errorf("got %q", out)
	}
	if n := len(api.pins(t, ns)); n != 3 {
		t.Fatalf("%d of 3 ImagePins are left after dry runs", n)
	}
	// Those of the current revision.
	if out := kubectl.must(t, ns, "rm", "deployment/web"); out != deleted(min(pins[0], pins[1]), "")+deleted(max(pins[0], pins[1]), "") {
		t.Errorf("got %q", out)
	}
	if left := api.pins(t, ns); len(left) != 1 || left[oldPin.Name].UID != oldPin.UID {
		t.Fatalf("got %v, want that of the old revision only", left)
	}
	r := kubectl.in(t, ns, "rm", "deployment/web")
	if r.code != 0 || r.out != "" || r.err != "No ImagePins of ReplicaSet/"+ownerOf(current).Name+" found in "+ns+" namespace.\n" {
		t.Errorf("exit code %d, %q, %q", r.code, r.out, r.err)
	}
	r = kubectl.in(t, ns, "rm", "imagepin/none", "imagepin/"+oldPin.Name, "-o", "name")
	if r.code != 1 || r.out != "imagepin.imagepin.io/"+oldPin.Name+"\n" || r.err != "error: imagepin/none: imagepins.imagepin.io \"none\" not found\n" {
		t.Errorf("exit code %d, %q, %q", r.code, r.out, r.err)
	}
	kubectl.in(t, ns, "rm", oldPin.Name).wantError(t, "Error from server (NotFound)", oldPin.Name)
	kubectl.in(t, ns, "rm").wantError(t, "NAME or KIND/NAME is required")
}
