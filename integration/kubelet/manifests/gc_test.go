package manifests

import (
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// TestDeletedWithOwner deletes the owner of an ImagePin: Kubernetes deletes the ImagePin.
func TestDeletedWithOwner(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	owner := &apps.ReplicaSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}, ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: apps.ReplicaSetSpec{Replicas: new(int32(0)), Selector: selector, Template: core.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: selector.MatchLabels}, Spec: core.PodSpec{Containers: containers},
		}},
	}
	replicaSets := "/apis/apps/v1/namespaces/" + ns + "/replicasets"
	api.must(t, "POST", replicaSets, owner, owner)
	api.runPods(t, ns, pod("web-x2x4z", n1))
	p := claimOf(v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: owner.UID}, n1, "web-x2x4z", "1")
	api.mustClaim(t, n1, ns, p)
	api.must(t, "DELETE", replicaSets+"/web", nil, nil)
	api.waitDeleted(t, ns, p)
}

// TestFalseOwnerUID claims with a UID that no owner has: Kubernetes deletes the ImagePin.
func TestFalseOwnerUID(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	api.runPods(t, ns, pod("web-7d4b9c-x2x4z", n1))
	p := web()
	api.mustClaim(t, n1, ns, p)
	api.waitDeleted(t, ns, p)
}

// waitDeleted waits until an ImagePin is deleted.
func (s *server) waitDeleted(t *testing.T, ns string, p *v1alpha1.ImagePin) {
	t.Helper()
	path := pinPath(ns, "") + "?watch=true&resourceVersion=" + p.ResourceVersion
	await(t, s, path, "the ImagePin is deleted", func(event watch.EventType, o *v1alpha1.ImagePin) bool {
		return event == watch.Deleted && o.UID == p.UID
	})
}
