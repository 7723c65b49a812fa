package agree

import (
	"context"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/testkit"
)

// recheck is how long the node of TestRefresh uses an ImagePin that it has read.
const recheck = time.Second

// TestRefresh changes the digest of an ImagePin as a person with the role edit: new pods run it. Then it deletes the
// ImagePin: a new pod resolves the tag, and the node creates the ImagePin again. The owner has the Events of a tag and of an
// ImagePin that have moved. At last, the person creates an ImagePin that is in the way of one.
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
	r.foreign(dev)
}

// foreign creates an ImagePin as a person, for something else and with the name of the one that a ReplicaSet is to have. The pods
// of the ReplicaSet start and agree. Its ImagePin is created when the foreign one is deleted.
func (r *rig) foreign(dev *cluster.Client) {
	r.t.Helper()
	t, m := r.t, r.pool.Members[0]
	d := r.deployment("foreign", 0)
	r.do("POST", r.apps("deployments"), d, nil)
	set := await[apps.ReplicaSet](t, r.apps("replicasets"), appLabel+"=foreign", "there is a ReplicaSet",
		func(sets []apps.ReplicaSet) bool { return len(sets) == 1 })[0]
	owner := v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set.Name, UID: set.UID}
	other := owner
	other.APIVersion = "example.com/v1"
	name := v1alpha1.Name(owner, r.image())
	if err := dev.Do(r.ctx, "POST", pinsPath(r.ns), &v1alpha1.ImagePin{
		TypeMeta:   meta.TypeMeta{APIVersion: "imagepin.io/v1alpha1", Kind: "ImagePin"},
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec:       v1alpha1.ImagePinSpec{Image: r.image(), Digest: r.push("wrong"), Owner: other},
	}, nil); err != nil {
		t.Fatal(err)
	}

	first := r.push("4")
	since := m.LogOffset()
	r.scale(r.apps("deployments", "foreign"), 1)
	pods := r.running("foreign", 1, rollout, "1")
	r.wantDigest(pods, first)
	r.push("5")
	pods = r.replace(pods[0], "foreign", 1)
	r.wantDigest(pods, first)
	awaitPin(t, m, r.image(), set.UID, "is provisional", provisional)
	warning := "ignoring a foreign ImagePin"
	hint := "kubectl delete imagepin -n " + r.ns + " " + name
	if logs := m.LogsSince(since); !strings.Contains(logs, warning) || !strings.Contains(logs, hint) {
		t.Errorf("the log has no %q with %q", warning, hint)
	}
	st, err := api.NewControlClient(m.Conn()).Status(r.ctx, &api.StatusRequest{})
	if err != nil || st.GetPins().GetProvisional() != 1 {
		t.Errorf("got %d provisional pins, %v, want 1", st.GetPins().GetProvisional(), err)
	}

	r.do("DELETE", pinsPath(r.ns, name), nil, nil)
	pods = append(r.replace(pods[0], "foreign", 1), pods...) // the node may have created it for the old pod already
	r.agreed(pods, "")
	r.wantDigest(pods, first)
	awaitPin(t, m, r.image(), set.UID, "is that of the cluster", settled(first))
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
