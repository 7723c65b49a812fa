package agree

import (
	"context"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/testkit"
)

// recheck is how long the node of TestRefresh uses an ImagePin that it has read.
const recheck = time.Second

// TestRefresh changes the digest of an ImagePin as a person with the role edit: new pods run it. Then it deletes the
// ImagePin: a new pod resolves the tag, and the node creates the ImagePin again. The owner has the Events of a tag and of an
// ImagePin that have moved.
func TestRefresh(t *testing.T) {
	t.Parallel()
	r := newRig(t, newPool(t, "refresh", poolOptions{Options: pool.Options{Nodes: 1}, cluster: `recheck = "` + recheck.String() + `"`}))
	person := r.ns + "-dev"
	r.do("POST", r.path("/apis/rbac.authorization.k8s.io/v1", "rolebindings", nil), &rbac.RoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: "dev"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: rbac.UserKind, Name: person}},
	}, nil)
	dev, err := kube.User(person)
	if err != nil {
		t.Fatal(err)
	}

	first := r.push("1")
	r.do("POST", r.apps("deployments"), r.deployment("web", 1), nil)
	pods := r.running("web", 1, rollout, "1")
	r.wantDigest(pods, first)
	pin := r.agreed(pods, "")
	second := r.push("2")
	r.wantDigest(r.replace(pods[0], "web", 1), first)
	owner := meta.GetControllerOf(&pods[0])
	r.awaitEvent(owner, "ImageTagMoved")

	// Kubernetes adds the permission to the role edit when it has seen the manifests.
	testkit.EventuallyIn(t, patience, "the person may change ImagePins", func(ctx context.Context) (bool, error) {
		change := map[string]any{"spec": map[string]any{"digest": second}}
		err := dev.Do(ctx, "PATCH", pinsPath(r.ns, pin.Name), change, nil)
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		return err == nil, err
	})
	r.refreshed(second)
	r.awaitEvent(owner, "ImagePinMoved")

	third := r.push("3")
	if err := dev.Do(r.ctx, "DELETE", pinsPath(r.ns, pin.Name), nil, nil); err != nil {
		t.Fatal(err)
	}
	pods = r.refreshed(third)
	again := r.agreed(pods, "")
	if again.Name != pin.Name || again.UID == pin.UID {
		t.Errorf("got ImagePin %s with UID %s, want another one with the name %s", again.Name, again.UID, pin.Name)
	}
}

// refreshed replaces the pod of a workload until it runs a digest. It fails the test if a pod runs another one that was
// created later than the node may use what it has read.
func (r *rig) refreshed(digest string) []core.Pod {
	r.t.Helper()
	from := time.Now()
	for {
		var pods core.PodList
		r.do("GET", r.core("pods"), nil, &pods)
		now := r.replace(pods.Items[0], "web", 1)
		if digestOf(now[0]) == digest {
			return now
		}
		// The times in the API are in seconds.
		if created := now[0].CreationTimestamp.Time; created.After(from.Add(recheck + time.Second)) {
			r.t.Fatalf("a pod of %s runs %s, want %s since %s", created, digestOf(now[0]), digest, from)
		}
	}
}
