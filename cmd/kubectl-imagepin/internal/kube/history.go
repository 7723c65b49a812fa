package kube

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// podsAtATime is how many pods a request lists.
const podsAtATime = 500

// ReplicaSets returns the ReplicaSets that an object controls, of those that options select.
func (f *Finder) ReplicaSets(ctx context.Context, obj metav1.Object, opts metav1.ListOptions) ([]appsv1.ReplicaSet, error) {
	list, err := f.client.AppsV1().ReplicaSets(obj.GetNamespace()).List(ctx, opts)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(rs appsv1.ReplicaSet) bool { return !metav1.IsControlledBy(&rs, obj) }), nil
}

// Reference returns the owner reference of the ImagePins of a revision: the object that Kubernetes deletes when the
// revision ends. It is the ControllerRevision if there is one, else the object that controls the pods.
func (f *Finder) Reference(ctx context.Context, r *Revision) (metav1.OwnerReference, error) {
	ref := metav1.OwnerReference{APIVersion: r.Owner.APIVersion, Kind: r.Owner.Kind, Name: r.Owner.Name, UID: r.Owner.UID, BlockOwnerDeletion: new(bool)}
	if r.Owner.Revision == "" {
		return ref, nil
	}
	c, err := f.client.AppsV1().ControllerRevisions(r.Namespace).Get(ctx, v1alpha1.ControllerRevisionName(r.Owner), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ref, nil
	}
	if err != nil {
		return ref, err
	}
	if by := metav1.GetControllerOfNoCopy(c); by != nil && by.UID == r.Owner.UID {
		ref.APIVersion, ref.Kind, ref.Name, ref.UID = appsv1.SchemeGroupVersion.String(), "ControllerRevision", c.Name, c.UID
	}
	return ref, nil
}

// latest returns the latest ControllerRevision that an object controls, or nil.
func (f *Finder) latest(ctx context.Context, obj metav1.Object, opts metav1.ListOptions) (*appsv1.ControllerRevision, error) {
	list, err := f.client.AppsV1().ControllerRevisions(obj.GetNamespace()).List(ctx, opts)
	if err != nil {
		return nil, err
	}
	var latest *appsv1.ControllerRevision
	for i := range list.Items {
		c := &list.Items[i]
		if metav1.IsControlledBy(c, obj) && (latest == nil || c.Revision > latest.Revision) {
			latest = c
		}
	}
	return latest, nil
}

// podOwner returns a workload that owns the pods of an object of another kind, for example replicaset/web-7d4b9c of a Rollout.
// It returns "" for an object that controls a pod itself, or no workload.
func (f *Finder) podOwner(ctx context.Context, obj metav1.Object) (string, error) {
	below, err := f.below(ctx, obj)
	if below == "" || err != nil {
		return "", err
	}
	controls := false
	err = EachPod(ctx, f.client.CoreV1(), obj.GetNamespace(), metav1.ListOptions{}, podsAtATime, func(pod *corev1.Pod) {
		controls = controls || metav1.IsControlledBy(pod, obj)
	})
	if controls || err != nil {
		return "", err
	}
	return below, nil
}

// below returns a workload that an object of another kind controls, or "". It ignores kinds that the user is
// forbidden to list.
func (f *Finder) below(ctx context.Context, obj metav1.Object) (string, error) {
	ns, all := obj.GetNamespace(), metav1.ListOptions{}
	for _, kind := range []struct {
		name string
		list func() (runtime.Object, error)
	}{
		{"deployment", func() (runtime.Object, error) { return f.client.AppsV1().Deployments(ns).List(ctx, all) }},
		{"replicaset", func() (runtime.Object, error) { return f.client.AppsV1().ReplicaSets(ns).List(ctx, all) }},
		{"statefulset", func() (runtime.Object, error) { return f.client.AppsV1().StatefulSets(ns).List(ctx, all) }},
		{"daemonset", func() (runtime.Object, error) { return f.client.AppsV1().DaemonSets(ns).List(ctx, all) }},
		{"job", func() (runtime.Object, error) { return f.client.BatchV1().Jobs(ns).List(ctx, all) }},
	} {
		list, err := kind.list()
		if apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			return "", err
		}
		for _, item := range items {
			if o, err := meta.Accessor(item); err == nil && metav1.IsControlledBy(o, obj) {
				return kind.name + "/" + o.GetName(), nil
			}
		}
	}
	return "", nil
}

// currentReplicaSet returns the ReplicaSet that has the pod template of a Deployment, as the deployment controller finds
// it: the hash label apart, the oldest if there is more than one. It returns nil if there is none.
func currentReplicaSet(d *appsv1.Deployment, all []appsv1.ReplicaSet) *appsv1.ReplicaSet {
	var current *appsv1.ReplicaSet
	for i := range all {
		rs := &all[i]
		template := rs.Spec.Template.DeepCopy()
		delete(template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		if equality.Semantic.DeepEqual(template, &d.Spec.Template) && (current == nil || rs.CreationTimestamp.Before(&current.CreationTimestamp)) {
			current = rs
		}
	}
	return current
}
