package kube

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCurrentReplicaSet(t *testing.T) {
	template := func(image string, labels map[string]string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: image}}}}
	}
	set := func(name, image string, age time.Duration) appsv1.ReplicaSet {
		return appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1700000000, 0).Add(-age))},
			Spec:       appsv1.ReplicaSetSpec{Template: template(image, map[string]string{"app": "web", "pod-template-hash": name})},
		}
	}
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: template("web:v2", map[string]string{"app": "web"})}}
	for _, tc := range []struct {
		name string
		all  []appsv1.ReplicaSet
		want string
	}{
		{"none", nil, ""},
		{"old ones only", []appsv1.ReplicaSet{set("a", "web:v1", 0)}, ""},
		{"the one of the template", []appsv1.ReplicaSet{set("a", "web:v1", 0), set("b", "web:v2", time.Hour), set("c", "web:v3", 0)}, "b"},
		{"the oldest of two", []appsv1.ReplicaSet{set("a", "web:v2", 0), set("b", "web:v2", time.Hour)}, "b"},
	} {
		got := currentReplicaSet(d, tc.all)
		if (got == nil) != (tc.want == "") || got != nil && got.Name != tc.want {
			t.Errorf("%s: got %v, want %q", tc.name, got, tc.want)
		}
	}
	if len(d.Spec.Template.Labels) != 1 {
		t.Error("the Deployment was changed")
	}
}
