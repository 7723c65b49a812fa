package kube

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// lists are what an API server answers to lists of resources. A resource without a list is forbidden.
type lists map[string]any

// with returns the lists with another one.
func (l lists) with(resource string, list any) lists {
	all := lists{resource: list}
	for r := range l {
		if r != resource {
			all[r] = l[r]
		}
	}
	return all
}

func (l lists) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	resource := path.Base(r.URL.Path)
	answer := l[resource]
	if answer == nil {
		w.WriteHeader(http.StatusForbidden)
		status := apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no")).Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer = status
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// finder returns a Finder for an API server with lists.
func (l lists) finder(t *testing.T) *Finder {
	t.Helper()
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return NewFinder(client)
}

// An object of another kind is refused only if it controls a workload, and no pod itself.
func TestCurrentOfOtherKind(t *testing.T) {
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Database", "metadata": map[string]any{"name": "db", "namespace": "shop", "uid": "1"},
	}}
	controlled := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(obj, obj.GroupVersionKind())}}
	}
	var (
		none = lists{
			"controllerrevisions": appsv1.ControllerRevisionList{}, "deployments": appsv1.DeploymentList{}, "replicasets": appsv1.ReplicaSetList{},
			"statefulsets": appsv1.StatefulSetList{}, "daemonsets": appsv1.DaemonSetList{}, "jobs": batchv1.JobList{}, "pods": corev1.PodList{},
		}
		jobs      = batchv1.JobList{Items: []batchv1.Job{{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, {ObjectMeta: controlled("db-backup")}}}
		otherPod  = corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		otherPods = corev1.PodList{Items: []corev1.Pod{otherPod}}
		pods      = corev1.PodList{Items: []corev1.Pod{otherPod, {ObjectMeta: controlled("db-0")}}}
		revisions = appsv1.ControllerRevisionList{Items: []appsv1.ControllerRevision{{ObjectMeta: controlled("db-1")}}}
		forbidden any
	)
	const refused = "database/db does not own its pods: name job/db-backup, or one of its pods"
	for _, tc := range []struct {
		name  string
		lists lists
		want  string // the error, or empty
	}{
		{"controls nothing", none, ""},
		{"controls nothing, and pods are forbidden", none.with("pods", forbidden), ""},
		{"controls a Job", none.with("jobs", jobs).with("pods", otherPods), refused},
		{"controls a Job and a pod", none.with("jobs", jobs).with("pods", pods), ""},
		{"controls a Job, and pods are forbidden", none.with("jobs", jobs).with("pods", forbidden), "pods is forbidden"},
		{"controls a Job, and other kinds are forbidden", lists{"controllerrevisions": none["controllerrevisions"], "jobs": jobs, "pods": otherPods}, refused},
		{"all workloads are forbidden", lists{"controllerrevisions": none["controllerrevisions"]}, ""},
		{"controls a ControllerRevision and a pod", none.with("controllerrevisions", revisions).with("pods", pods), "name one of its pods"},
		{"ControllerRevisions are forbidden", none.with("controllerrevisions", forbidden), "controllerrevisions is forbidden"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rev, err := tc.lists.finder(t).Current(t.Context(), obj)
			switch {
			case tc.want != "":
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
			case err != nil || rev.Owner.UID != obj.GetUID() || rev.Owner.Revision != "":
				t.Errorf("got %v, %v, want the object", rev, err)
			}
		})
	}
}
