package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/protect"
)

// ReadNeeds reads which digests a cluster needs: in all namespaces, what pods run, the ImagePins, and the digests that the pod
// templates of kept revisions and of CronJobs name. It requests chunk objects at a time. It fails if it must not read a part.
func ReadNeeds(ctx context.Context, client kubernetes.Interface, pins *Pins, chunk int64) (*protect.Needs, error) {
	needs := &protect.Needs{}
	opts := metav1.ListOptions{}
	if err := EachPod(ctx, client.CoreV1(), metav1.NamespaceAll, opts, chunk, needs.AddPod); err != nil {
		return nil, err
	}
	all, err := pins.List(ctx, metav1.NamespaceAll, metav1.ListOptions{Limit: chunk})
	if err != nil && !errors.Is(err, ErrNotServed) {
		return nil, err
	}
	for i := range all {
		needs.AddPin(&all[i])
	}
	apps := client.AppsV1()
	err = each(ctx, chunk, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return apps.ReplicaSets(metav1.NamespaceAll).List(ctx, opts)
	}, func(obj runtime.Object) error {
		rs := obj.(*appsv1.ReplicaSet)
		needs.AddTemplate(user("ReplicaSet", rs), &rs.Spec.Template.Spec)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = each(ctx, chunk, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return apps.ControllerRevisions(metav1.NamespaceAll).List(ctx, opts)
	}, func(obj runtime.Object) error {
		c := obj.(*appsv1.ControllerRevision)
		spec, err := revisionTemplate(c)
		if err != nil {
			return err
		}
		needs.AddTemplate(user("ControllerRevision", c), spec)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = each(ctx, chunk, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return client.BatchV1().CronJobs(metav1.NamespaceAll).List(ctx, opts)
	}, func(obj runtime.Object) error {
		c := obj.(*batchv1.CronJob)
		needs.AddTemplate(user("CronJob", c), &c.Spec.JobTemplate.Spec.Template.Spec)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return needs, nil
}

// each lists objects, chunk at a time, and calls fn for each.
func each(ctx context.Context, chunk int64, list func(context.Context, metav1.ListOptions) (runtime.Object, error), fn func(runtime.Object) error) error {
	p := pager.New(list)
	p.PageSize = chunk
	return p.EachListItem(ctx, metav1.ListOptions{}, fn)
}

func user(kind string, obj metav1.Object) protect.User {
	return protect.User{Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// revisionTemplate returns the pod template of a ControllerRevision. Those of StatefulSets and DaemonSets have a patch of the
// object. Other controllers may keep something else, which has no images.
func revisionTemplate(c *appsv1.ControllerRevision) (*corev1.PodSpec, error) {
	var patch struct {
		Spec struct {
			Template struct {
				Spec corev1.PodSpec `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	owner := metav1.GetControllerOfNoCopy(c)
	if owner == nil || owner.APIVersion != appsv1.SchemeGroupVersion.String() {
		return &corev1.PodSpec{}, nil
	}
	if err := json.Unmarshal(c.Data.Raw, &patch); err != nil {
		return nil, fmt.Errorf("controllerrevision/%s in namespace %s: %w", c.Name, c.Namespace, err)
	}
	return &patch.Spec.Template.Spec, nil
}

// ClusterOf returns what identifies a cluster: the UID of its namespace kube-system.
func ClusterOf(ctx context.Context, client kubernetes.Interface) (protect.Cluster, error) {
	ns, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return protect.ClusterOf(string(ns.UID)), nil
}
