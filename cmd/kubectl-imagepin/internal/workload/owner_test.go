package workload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

func TestOwnerOf(t *testing.T) {
	yes := true
	controller := func(apiVersion, kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "other"}, {APIVersion: apiVersion, Kind: kind, Name: "web", UID: "1", Controller: &yes}}
	}
	labels := map[string]string{"controller-revision-hash": "web-2"}
	for _, tc := range []struct {
		name string
		pod  metav1.ObjectMeta
		want *v1alpha1.Owner
	}{
		{"no controller", metav1.ObjectMeta{Labels: labels}, nil},
		{"an owner that is not the controller", metav1.ObjectMeta{OwnerReferences: controller("apps/v1", "ReplicaSet")[:1]}, nil},
		{"a node", metav1.ObjectMeta{OwnerReferences: controller("v1", "Node")}, nil},
		{"a mirror pod", metav1.ObjectMeta{OwnerReferences: controller("apps/v1", "ReplicaSet"), Annotations: map[string]string{"kubernetes.io/config.mirror": "x"}}, nil},
		{"a kind Node of another group", metav1.ObjectMeta{OwnerReferences: controller("example.com/v1", "Node")},
			&v1alpha1.Owner{APIVersion: "example.com/v1", Kind: "Node", Name: "web", UID: "1"}},
		{"a ReplicaSet", metav1.ObjectMeta{OwnerReferences: controller("apps/v1", "ReplicaSet")},
			&v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "1"}},
		{"a ReplicaSet whose pods have the label", metav1.ObjectMeta{OwnerReferences: controller("apps/v1", "ReplicaSet"), Labels: labels},
			&v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "1"}},
		{"a Job whose pods have the label", metav1.ObjectMeta{OwnerReferences: controller("batch/v1", "Job"), Labels: labels},
			&v1alpha1.Owner{APIVersion: "batch/v1", Kind: "Job", Name: "web", UID: "1"}},
		{"a StatefulSet", metav1.ObjectMeta{OwnerReferences: controller("apps/v1", "StatefulSet"), Labels: labels},
			&v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "1", Revision: "web-2"}},
		{"another kind with revisions", metav1.ObjectMeta{OwnerReferences: controller("apps.kruise.io/v1alpha1", "CloneSet"), Labels: labels},
			&v1alpha1.Owner{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet", Name: "web", UID: "1", Revision: "web-2"}},
		{"another kind without revisions", metav1.ObjectMeta{OwnerReferences: controller("example.com/v1", "ReplicaSet")},
			&v1alpha1.Owner{APIVersion: "example.com/v1", Kind: "ReplicaSet", Name: "web", UID: "1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := OwnerOf(&corev1.Pod{ObjectMeta: tc.pod})
			if ok != (tc.want != nil) || ok && got != *tc.want {
				t.Errorf("got %+v, %v, want %+v", got, ok, tc.want)
			}
		})
	}
}

func TestHasOneTemplate(t *testing.T) {
	for _, tc := range []struct {
		owner v1alpha1.Owner
		want  bool
	}{
		{v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet"}, true},
		{v1alpha1.Owner{APIVersion: "batch/v1", Kind: "Job"}, true},
		{v1alpha1.Owner{APIVersion: "apps/v1", Kind: "DaemonSet", Revision: "5d9"}, true},
		{v1alpha1.Owner{APIVersion: "apps/v1", Kind: "DaemonSet"}, false},
		{v1alpha1.Owner{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster"}, false},
	} {
		if got := HasOneTemplate(tc.owner); got != tc.want {
			t.Errorf("%+v: got %v, want %v", tc.owner, got, tc.want)
		}
	}
}
