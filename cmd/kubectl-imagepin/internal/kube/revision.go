package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// ErrNotObserved is the error for a workload whose controller has not observed its latest change yet.
var ErrNotObserved = errors.New("its controller has not observed its latest change yet")

// ErrNoRevision is the error for an object without a revision: a CronJob, or a pod without a controller.
var ErrNoRevision = errors.New("no revision")

// noRevision is an ErrNoRevision with a message that says why.
type noRevision string

func (e noRevision) Error() string { return string(e) }

func (noRevision) Is(target error) bool { return target == ErrNoRevision }

// Revision is a revision of a workload.
type Revision struct {
	Namespace string
	Owner     v1alpha1.Owner
	// Template is the pod template of the revision. It is nil if the plugin does not know the kind of the workload.
	Template *corev1.PodSpec
	// Annotations are those of the pods that the template makes.
	Annotations map[string]string
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
type Finder struct{ client kubernetes.Interface }

// NewFinder returns a Finder for a cluster.
func NewFinder(client kubernetes.Interface) *Finder { return &Finder{client} }

// Current returns the revision of a workload whose pods the workload creates now:
//
//	Deployment            the ReplicaSet of its pod template
//	StatefulSet           its update revision
//	DaemonSet             its latest revision
//	Pod                   the revision that owns the pod
//	ReplicaSet, Job       the object
//	another kind          the object, if it has no ControllerRevisions, and controls a pod or no workload that is built in
//
// It fails with [ErrNotObserved] if a controller has not observed the latest change of the workload yet, and with
// [ErrNoRevision] for a CronJob and for a pod without a controller.
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
		return nil, noRevision(name(obj) + " has no revision: each of its Jobs has its own ImagePins, name a job")
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
	all, err := f.ReplicaSets(ctx, &d, selected(d.Spec.Selector))
	if err != nil {
		return nil, err
	}
	rs := currentReplicaSet(&d, all)
	if rs == nil && d.Spec.Paused {
		return nil, fmt.Errorf("%s has no ReplicaSet of its current template, because it is paused: Kubernetes creates it after kubectl rollout resume", name(obj))
	}
	if rs == nil {
		return nil, notObserved(obj)
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
		return nil, noRevision("pod/" + p.Name + " has no controller, thus no ImagePins")
	}
	return &Revision{Namespace: p.Namespace, Owner: owner, Template: &p.Spec, Annotations: p.Annotations, Selector: labels.Everything()}, nil
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
	owner, err := f.podOwner(ctx, obj)
	if err != nil {
		return nil, err
	}
	if owner != "" {
		return nil, fmt.Errorf("%s does not own its pods: name %s, or one of its pods", name(obj), owner)
	}
	return newRevision(obj.GroupVersionKind(), obj, "", &metav1.LabelSelector{}, nil)
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
		r.Template, r.Annotations = &template.Spec, template.Annotations
	}
	return r, nil
}

// selected returns options to list what the selector of a workload selects.
func selected(s *metav1.LabelSelector) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(s)}
}

// Template returns the pod template of a CronJob, or what a pod runs: objects without a revision.
func Template(obj *unstructured.Unstructured) (*corev1.PodSpec, error) {
	if obj.GetKind() == "CronJob" {
		var c batchv1.CronJob
		err := decode(obj, &c)
		return &c.Spec.JobTemplate.Spec.Template.Spec, err
	}
	var p corev1.Pod
	err := decode(obj, &p)
	return &p.Spec, err
}

func decode(obj *unstructured.Unstructured, into any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, into); err != nil {
		return fmt.Errorf("%s: %w", name(obj), err)
	}
	return nil
}

func notObserved(obj *unstructured.Unstructured) error {
	return fmt.Errorf("%s: %w", name(obj), ErrNotObserved)
}

// name returns how kubectl names an object, for example statefulset/db.
func name(obj *unstructured.Unstructured) string {
	return strings.ToLower(obj.GetKind()) + "/" + obj.GetName()
}
