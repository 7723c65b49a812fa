package agree

import (
	"testing"

	apps "k8s.io/api/apps/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

func (r *rig) deployment(name string, replicas int32) *apps.Deployment {
	return &apps.Deployment{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec:       apps.DeploymentSpec{Replicas: &replicas, Selector: selector(name), Template: r.template(name)},
	}
}

// TestDeployment moves the tag after the first pod of a Deployment runs. All pods of a ReplicaSet run the digest of its
// first pod. A new ReplicaSet resolves the tag, and one that is rolled back to does not.
func TestDeployment(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	path := r.apps("deployments", "web")
	first := r.push("1")
	r.do("POST", r.apps("deployments"), r.deployment("web", 1), nil)
	pods := r.running("web", 1, rollout, "1")
	r.wantDigest(pods, first)
	winner := pods[0]

	second := r.push("2")
	r.scale(path, 3)
	pods = r.running("web", 3, rollout, "1")
	r.wantDigest(pods, first)
	pin := r.agreed(pods, "")
	if pin.Spec.By.Node != winner.Spec.NodeName || pin.Spec.By.PodUID != winner.UID {
		t.Errorf("the ImagePin is by %+v, want pod %s on %s", *pin.Spec.By, winner.Name, winner.Spec.NodeName)
	}
	r.awaitEvent(meta.GetControllerOf(&pods[0]), "ImagePinned")
	if nodes := nodesOf(pods); len(nodes) != 3 {
		t.Errorf("the pods run on %v, want three nodes", nodes)
	}

	// Another template.
	r.roll(path, rollout, "2")
	pods = r.running("web", 3, rollout, "2")
	r.wantDigest(pods, second)
	r.agreed(pods, "")

	// kubectl rollout undo.
	third := r.push("3")
	r.roll(path, rollout, "1")
	r.wantDigest(r.running("web", 3, rollout, "1"), first)

	// kubectl rollout restart.
	const restarted = "kubectl.kubernetes.io/restartedAt"
	r.roll(path, restarted, "2026-11-23T03:00:00Z")
	pods = r.running("web", 3, restarted, "2026-11-23T03:00:00Z")
	r.wantDigest(pods, third)
	last := r.agreed(pods, "")

	// ReplicaSets that the history does not keep are deleted, and their ImagePins with them.
	if n := len(r.pins()); n != 3 {
		t.Errorf("got %d ImagePins for three ReplicaSets", n)
	}
	r.patch(path, map[string]any{"spec": map[string]any{"revisionHistoryLimit": 0}})
	await[v1alpha1.ImagePin](t, pinsPath(r.ns), "", "only the last ReplicaSet has an ImagePin", func(pins []v1alpha1.ImagePin) bool {
		return len(pins) == 1 && pins[0].Name == last.Name
	})
}

// TestRecreatedDeployment deletes a Deployment and creates it again. Its ReplicaSet has the same name and hash as before,
// and resolves the tag again.
func TestRecreatedDeployment(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	path := r.apps("deployments", "web")
	first := r.push("1")
	r.do("POST", r.apps("deployments"), r.deployment("web", 1), nil)
	pods := r.running("web", 1, rollout, "1")
	r.wantDigest(pods, first)
	before := meta.GetControllerOf(&pods[0])

	second := r.push("2")
	foreground := meta.DeletePropagationForeground
	r.do("DELETE", path, &meta.DeleteOptions{PropagationPolicy: &foreground}, nil)
	await[apps.Deployment](t, r.apps("deployments"), "", "the Deployment is deleted", func(all []apps.Deployment) bool { return len(all) == 0 })
	r.do("POST", r.apps("deployments"), r.deployment("web", 3), nil)
	pods = r.running("web", 3, rollout, "1")
	after := meta.GetControllerOf(&pods[0])
	if before.Name != after.Name || before.UID == after.UID {
		t.Errorf("got ReplicaSets %v and %v, want one name and two UIDs", before, after)
	}
	r.wantDigest(pods, second)
	r.agreed(pods, "")
}

// TestRace starts the first pods of a ReplicaSet on three nodes at one time. The registry gives each node another digest.
func TestRace(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	race, _ := r.moving(3, 3)
	r.do("POST", r.apps("deployments"), r.deployment("web", 3), nil)
	pods := r.running("web", 3, rollout, "1")
	r.agreed(pods, "")
	race.finish()
	r.awaitEvent(meta.GetControllerOf(&pods[0]), "ImageClaimLost")
}
