package agree

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// rollouts returns how many revisions TestRollouts rolls out. It is in the environment variable IMAGEPIN_ROLLOUTS.
func rollouts(t *testing.T) int {
	t.Helper()
	text := os.Getenv("IMAGEPIN_ROLLOUTS")
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 {
		t.Fatalf("IMAGEPIN_ROLLOUTS: %q is not a number from 2 on", text)
	}
	return n
}

// TestRollouts rolls out a Deployment, a DaemonSet and a StatefulSet together, again and again, while the tag moves after
// each request for it. Each revision runs one digest, which no other revision of its workload runs. Two workloads can run the same
// one: a node resolves a tag once for pods that start at the same time. ImagePins of revisions that the history does not keep are
// deleted.
func TestRollouts(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	n := rollouts(t)
	history := n / 2
	workloads := append([]workload{{"ReplicaSet", "deployments", func(r *rig, name string) any { return r.deployment(name, 3) }}}, revisioned...)
	ran := map[[2]string]string{} // the revisions, by workload and digest
	for i := range n {
		revision := strconv.Itoa(i + 1)
		r.moving(3*len(workloads), 1)
		for _, w := range workloads {
			if i == 0 {
				r.do("POST", r.apps(w.resource), w.object(r, w.resource), nil)
				r.patch(r.apps(w.resource, w.resource), map[string]any{"spec": map[string]any{"revisionHistoryLimit": history}})
			} else {
				r.roll(r.apps(w.resource, w.resource), rollout, revision)
			}
		}
		for _, w := range workloads {
			pods := r.running(w.resource, 3, rollout, revision)
			pin := v1alpha1.ImagePin{}
			if w.kind == "ReplicaSet" {
				pin = r.agreed(pods, "")
			} else {
				pin = r.wantRevision(pods, w.kind)
			}
			of := fmt.Sprintf("revision %s of %s", revision, w.resource)
			key := [2]string{w.resource, pin.Spec.Digest}
			if other := ran[key]; other != "" {
				t.Errorf("%s and %s run %s", other, of, pin.Spec.Digest)
			}
			ran[key] = of
		}
	}
	what := fmt.Sprintf("%d revisions of each workload have an ImagePin", history+1)
	await[v1alpha1.ImagePin](t, pinsPath(r.ns), "", what, func(pins []v1alpha1.ImagePin) bool {
		return len(pins) == (history+1)*len(workloads)
	})
}
