package drift

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// pod returns a pod of an owner, whose container web names an image and reports an imageID.
func pod(owner, name, image, imageID string, change ...func(*corev1.Pod)) *corev1.Pod {
	yes := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: &yes},
		}},
		Spec:   corev1.PodSpec{NodeName: "n-" + name, Containers: []corev1.Container{{Name: "web", Image: image}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web", ImageID: imageID}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// kind changes the kind of a pod's owner, and its revision.
func kind(apiVersion, kind, revision string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = apiVersion, kind
		p.Labels = map[string]string{"controller-revision-hash": revision}
	}
}

func failed(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }

func bare(p *corev1.Pod) { p.OwnerReferences = nil }

func TestDrift(t *testing.T) {
	const image, a, b = "shop/web:v7", "shop/web@" + digestA, "shop/web@" + digestB
	operator := kind("example.com/v1", "Database", "")
	for _, tc := range []struct {
		name           string
		pods           []*corev1.Pod
		counted, drift int
	}{
		{"nothing", nil, 0, 0},
		{"one digest", []*corev1.Pod{pod("web", "1", image, a), pod("web", "2", image, a)}, 2, 0},
		{"two digests", []*corev1.Pod{pod("web", "1", image, a), pod("web", "2", image, b)}, 2, 1},
		{"two ReplicaSets", []*corev1.Pod{pod("web-1", "1", image, a), pod("web-2", "2", image, b)}, 2, 0},
		{"two revisions of a StatefulSet", []*corev1.Pod{
			pod("db", "1", image, a, kind("apps/v1", "StatefulSet", "db-1")), pod("db", "2", image, b, kind("apps/v1", "StatefulSet", "db-2")),
		}, 2, 0},
		{"one revision of a StatefulSet", []*corev1.Pod{
			pod("db", "1", image, a, kind("apps/v1", "StatefulSet", "db-1")), pod("db", "2", image, b, kind("apps/v1", "StatefulSet", "db-1")),
		}, 2, 1},
		{"a pod that pulls", []*corev1.Pod{pod("web", "1", image, a), pod("web", "2", image, "")}, 1, 0},
		{"a pod that has failed", []*corev1.Pod{pod("web", "1", image, a), pod("web", "2", image, b, failed)}, 1, 0},
		{"pods without an owner", []*corev1.Pod{pod("web", "1", image, a, bare), pod("web", "2", image, b, bare)}, 0, 0},
		{"the same digest of two runtimes", []*corev1.Pod{pod("web", "1", image, a), pod("web", "2", image, "docker-pullable://"+a)}, 2, 0},
		{"digests that cannot be compared", []*corev1.Pod{pod("web", "1", image, a), pod("web", "2", image, digestB)}, 2, 0},
		{"a webhook that adds digests", []*corev1.Pod{pod("web", "1", image+"@"+digestA, a), pod("web", "2", image+"@"+digestB, b)}, 2, 1},
		{"a webhook that replaces tags", []*corev1.Pod{pod("web", "1", a, a), pod("web", "2", b, b)}, 2, 1},
		{"an edited ReplicaSet", []*corev1.Pod{pod("web", "1", image, a), pod("web", "2", "shop/web:v8", b)}, 2, 0},
		{"an operator that updates a tag", []*corev1.Pod{pod("db", "1", image, a, operator), pod("db", "2", "shop/web:v8", b, operator)}, 2, 0},
		{"an operator that updates a digest", []*corev1.Pod{pod("db", "1", a, a, operator), pod("db", "2", b, b, operator)}, 2, 0},
		{"an operator's tag that moves", []*corev1.Pod{pod("db", "1", image, a, operator), pod("db", "2", image, b, operator)}, 2, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c Collector
			for _, p := range tc.pods {
				c.Add(p)
			}
			if r := c.Report(); r.Pods != tc.counted || len(r.Drifted()) != tc.drift {
				t.Errorf("%d of %d pods counted, drift %+v, want %d and %d owners", r.Pods, len(tc.pods), r.Drifted(), tc.counted, tc.drift)
			}
		})
	}
}

func TestReport(t *testing.T) {
	var c Collector
	// Owners of the same name in two namespaces, out of order.
	for i, ns := range []string{"z", "a"} {
		p := pod("web", fmt.Sprint(i), "shop/web:v7", "shop/web@"+digestA)
		p.Namespace, p.OwnerReferences[0].UID = ns, types.UID(ns)
		c.Add(p)
	}
	second := pod("web", "2", "shop/web:v7", "shop/web@"+digestB)
	second.Namespace, second.OwnerReferences[0].UID = "a", "a"
	second.Spec.InitContainers = []corev1.Container{{Name: "web", Image: "init:v1"}}
	second.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "web", ImageID: "init@" + digestA}}
	c.Add(second)

	r := c.Report()
	if len(r.Owners) != 2 || r.Owners[0].Namespace != "a" || r.Owners[1].Namespace != "z" {
		t.Fatalf("got %+v, want the owners by namespace", r.Owners)
	}
	a := r.Owners[0]
	if !a.Drift || r.Owners[1].Drift {
		t.Errorf("got %+v, want drift in namespace a only", r.Owners)
	}
	if len(a.Containers) != 2 || a.Containers[0].Image != "docker.io/shop/web:v7" || !a.Containers[0].Drift || a.Containers[1].Drift {
		t.Errorf("got %+v, want drift of the container, not of the init container", a.Containers)
	}
	if b := a.Containers[0].Builds; len(b) != 2 || b[0].Digest != digestA || b[0].Pods[0].Node != "n-1" {
		t.Errorf("got %+v, want both digests with their pods", b)
	}
}
