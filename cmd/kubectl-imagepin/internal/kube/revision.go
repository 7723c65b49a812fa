package kube

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// Revision is a revision of a workload.
type Revision struct {
	Namespace string
	Owner     v1alpha1.Owner
	// Template is the pod template of the revision. It is nil if the plugin does not know the kind of the workload.
	Template *corev1.PodSpec
	// Selector selects the pods of the workload, and possibly others.
	Selector labels.Selector
}

// String returns the kind and the name of the owner, and the revision if there is one.
func (r *Revision) String() string {
	s := r.Owner.Kind + "/" + r.Owner.Name
	if r.Owner.Revision != "" {
		s += " (revision " + r.Owner.Revision + ")"
	}
	return s
}

// Finder finds revisions.
type Finder struct {
	Apps appsv1client.AppsV1Interface
}

// Current returns the revision of a workload whose pods the workload creates now:
//
//	Deployment            the ReplicaSet of its pod template
//	StatefulSet           its update revision
//	DaemonSet             its latest revision
//	Pod                   the revision that owns the pod
//	ReplicaSet, Job       the object
//	another kind          the object, if it has no ControllerRevisions
//
// It fails if a controller has not observed the latest change of the workload yet.
func (f *Finder) Current(ctx context.Context, obj *unstructured.Unstructured) (*Revision, error) {
	find := f.object
	switch obj.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}:
		find = f.deployment
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}:
		find = f.statefulSet
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "DaemonSet"}:
		find = f.daemonSet
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}:
		find = f.replicaSet
	case schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}:
		find = f.job
	case schema.GroupKind{Group: batchv1.GroupName, Kind: "CronJob"}:
		return nil, fmt.Errorf("%s has no revision: each of its Jobs has its own ImagePins, name a job", name(obj))
	case schema.GroupKind{Kind: "Pod"}:
		find = f.pod
	}
	return find(ctx, obj)
}

func (f *Finder) deployment(ctx context.Context, obj *unstructured.Unstructured) (*Revision, error) {
	var d appsv1.Deployment
	if err := decode(obj, &d); err != nil {
		return nil, err
	}
	all, err := f.replicaSets(ctx, &d, selected(d.Spec.Selector))
	if err != nil {
		return nil, err
	}
	rs := currentReplicaSet(&d, all)
	if rs == nil {
		return nil, fmt.Errorf("%s has no ReplicaSet of its current template: it is paused, or the change is not observed yet", name(obj))
	}
	return newRevision(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), rs, "", rs.Spec.Selector, &rs.Spec.Template)
}

func (f *Finder) statefulSet(_ context.Context, obj *unstructured.Unstructured) (*Revision, error) {
	var s appsv1.StatefulSet
	if err := decode(obj, &s); err != nil {
		return nil, err
	}
	if s.Status.ObservedGeneration < s.Generation || s.Status.UpdateRevision == "" {
		return nil, notObserved(obj)
	}
	return newRevision(obj.GroupVersionKind(), &s, s.Status.UpdateRevision, s.Spec.Selector, &s.Spec.Template)
}

func (f *Finder) daemonSet(ctx context.Context, obj *unstructured.Unstructured) (*Revision, error) {
	var d appsv1.DaemonSet
	if err := decode(obj, &d); err != nil {
		return nil, err
	}
	if d.Status.ObservedGeneration < d.Generation {
		return nil, notObserved(obj)
	}
	latest, err := f.latest(ctx, &d, selected(d.Spec.Selector))
	if err != nil {
		return nil, err
	}
	if latest == nil {
		return nil, notObserved(obj)
	}
	return newRevision(obj.GroupVersionKind(), &d, latest.Labels[appsv1.ControllerRevisionHashLabelKey], d.Spec.Selector, &d.Spec.Template)
}

func (f *Finder) replicaSet(_ context.Context, obj *unstructured.Unstructured) (*Revision, error) {
	var rs appsv1.ReplicaSet
	if err := decode(obj, &rs); err != nil {
		return nil, err
	}
	return newRevision(obj.GroupVersionKind(), &rs, "", rs.Spec.Selector, &rs.Spec.Template)
}

func (f *Finder) job(_ context.Context, obj *unstructured.Unstructured) (*Revision, error) {
	var j batchv1.Job
	if err := decode(obj, &j); err != nil {
		return nil, err
	}
	return newRevision(obj.GroupVersionKind(), &j, "", j.Spec.Selector, &j.Spec.Template)
}

func (f *Finder) pod(_ context.Context, obj *unstructured.Unstructured) (*Revision, error) {
	var p corev1.Pod
	if err := decode(obj, &p); err != nil {
		return nil, err
	}
	owner, ok := workload.OwnerOf(&p)
	if !ok {
		return nil, fmt.Errorf("pod/%s has no controller, thus no ImagePins", p.Name)
	}
	return &Revision{Namespace: p.Namespace, Owner: owner, Template: &p.Spec, Selector: labels.Everything()}, nil
}

// object returns the revision of a kind that is not built in.
func (f *Finder) object(ctx context.Context, obj *unstructured.Unstructured) (*Revision, error) {
	latest, err := f.latest(ctx, obj, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if latest != nil {
		return nil, fmt.Errorf("%s has revisions, and its kind %s does not define which one is current: name one of its pods", name(obj), obj.GetKind())
	}
	return newRevision(obj.GroupVersionKind(), obj, "", &metav1.LabelSelector{}, nil)
}

// ReplicaSets returns the ReplicaSets that an object controls.
func (f *Finder) ReplicaSets(ctx context.Context, obj metav1.Object) ([]appsv1.ReplicaSet, error) {
	return f.replicaSets(ctx, obj, metav1.ListOptions{})
}

func (f *Finder) replicaSets(ctx context.Context, obj metav1.Object, opts metav1.ListOptions) ([]appsv1.ReplicaSet, error) {
	list, err := f.Apps.ReplicaSets(obj.GetNamespace()).List(ctx, opts)
	if err != nil {
		return nil, err
	}
	var controlled []appsv1.ReplicaSet
	for _, rs := range list.Items {
		if metav1.IsControlledBy(&rs, obj) {
			controlled = append(controlled, rs)
		}
	}
	return controlled, nil
}

// Reference returns the owner reference of the ImagePins of a revision: the object that Kubernetes deletes when the
// revision ends. It is the ControllerRevision if there is one, else the object that controls the pods.
func (f *Finder) Reference(ctx context.Context, r *Revision) (metav1.OwnerReference, error) {
	ref := metav1.OwnerReference{APIVersion: r.Owner.APIVersion, Kind: r.Owner.Kind, Name: r.Owner.Name, UID: r.Owner.UID, BlockOwnerDeletion: new(bool)}
	if r.Owner.Revision == "" {
		return ref, nil
	}
	for _, name := range historyNames(r.Owner) {
		c, err := f.Apps.ControllerRevisions(r.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return ref, err
		}
		if by := metav1.GetControllerOfNoCopy(c); by != nil && by.UID == r.Owner.UID {
			ref.APIVersion, ref.Kind, ref.Name, ref.UID = appsv1.SchemeGroupVersion.String(), "ControllerRevision", c.Name, c.UID
			return ref, nil
		}
	}
	return ref, nil
}

// historyNames returns the names that the ControllerRevision of an owner can have. A StatefulSet labels its pods with the
// name, a DaemonSet with the hash at its end. Some controllers cut the name of the owner
// (ControllerRevisionName in k8s.io/kubernetes/pkg/controller/history).
func historyNames(o v1alpha1.Owner) []string {
	const maxOwner = 223
	names := []string{o.Revision, o.Name + "-" + o.Revision}
	if len(o.Name) > maxOwner {
		names = append(names, o.Name[:maxOwner]+"-"+o.Revision)
	}
	return names
}

// latest returns the latest ControllerRevision that an object controls, or nil.
func (f *Finder) latest(ctx context.Context, obj metav1.Object, opts metav1.ListOptions) (*appsv1.ControllerRevision, error) {
	list, err := f.Apps.ControllerRevisions(obj.GetNamespace()).List(ctx, opts)
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

func newRevision(kind schema.GroupVersionKind, obj metav1.Object, revision string, selector *metav1.LabelSelector, template *corev1.PodTemplateSpec) (*Revision, error) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("%s/%s: invalid selector: %w", kind.Kind, obj.GetName(), err)
	}
	r := &Revision{
		Namespace: obj.GetNamespace(), Selector: s,
		Owner: v1alpha1.Owner{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: obj.GetName(), UID: obj.GetUID(), Revision: revision},
	}
	if template != nil {
		r.Template = &template.Spec
	}
	return r, nil
}

// selected returns options to list what the selector of a workload selects.
func selected(s *metav1.LabelSelector) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(s)}
}

func decode(obj *unstructured.Unstructured, into any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, into); err != nil {
		return fmt.Errorf("%s: %w", name(obj), err)
	}
	return nil
}

func notObserved(obj *unstructured.Unstructured) error {
	return fmt.Errorf("%s: its controller has not observed its latest change yet", name(obj))
}

// name returns how kubectl names an object, for example statefulset/db.
func name(obj *unstructured.Unstructured) string {
	return strings.ToLower(obj.GetKind()) + "/" + obj.GetName()
}
