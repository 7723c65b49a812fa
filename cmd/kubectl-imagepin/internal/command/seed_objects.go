package command

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
)

// listedResources are the workloads that seed --all and --selector list.
var listedResources = []string{"deployments.apps", "statefulsets.apps", "daemonsets.apps", "replicasets.apps", "jobs.batch", "cronjobs.batch"}

// workloadKinds are the kinds of the manifests for which seed does something.
var workloadKinds = []schema.GroupKind{
	{Group: appsv1.GroupName, Kind: "Deployment"}, {Group: appsv1.GroupName, Kind: "StatefulSet"}, {Group: appsv1.GroupName, Kind: "DaemonSet"},
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}, {Group: batchv1.GroupName, Kind: "Job"}, {Group: batchv1.GroupName, Kind: "CronJob"},
	{Group: corev1.GroupName, Kind: "Pod"},
}

// objects reads the workloads that arguments or flags name, each once. It returns those that it can read, and the errors of the
// others.
func (o *seedOptions) objects(args []string) ([]*resource.Info, error) {
	namespace, enforce, err := o.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	b := resource.NewBuilder(o.flags).Unstructured().ContinueOnError().NamespaceParam(namespace).DefaultNamespace()
	files := len(args) == 0 && o.labels == "" && !o.all
	switch {
	case files:
		b.FilenameParam(enforce, &o.files)
	case len(args) > 0:
		b.ResourceNames("", args...)
	default:
		b.AllNamespaces(o.allNamespaces).LabelSelectorParam(o.labels).ResourceTypes(listedResources...).SelectAllParam(o.all)
	}
	result := b.Flatten().Do()
	if err := result.Err(); err != nil {
		return nil, err
	}
	var (
		found []*resource.Info
		seen  = make(map[types.UID]bool)
	)
	err = result.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		if files {
			if !slices.Contains(workloadKinds, info.Mapping.GroupVersionKind.GroupKind()) {
				return nil
			}
			if err := info.Get(); err != nil {
				return notApplied(info, err)
			}
		}
		obj := info.Object.(*unstructured.Unstructured)
		if !seen[obj.GetUID()] && (len(args) > 0 || files || own(obj)) {
			found, seen[obj.GetUID()] = append(found, info), true
		}
		return nil
	})
	return found, err
}

// notApplied returns the error of a manifest whose object cannot be read.
func notApplied(info *resource.Info, err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: apply the manifest first", err)
	}
	return err
}

// own reports whether a listed workload is seeded itself, and not with what controls it, and has not finished.
func own(obj *unstructured.Unstructured) bool {
	if metav1.GetControllerOfNoCopy(obj) != nil {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	return obj.GetKind() != "Job" || !slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["status"] == "True" && (condition["type"] == string(batchv1.JobComplete) || condition["type"] == string(batchv1.JobFailed))
	})
}

// infoName returns how commands name an object, for example deployment/web.
func infoName(info *resource.Info) string {
	return strings.ToLower(info.Mapping.GroupVersionKind.Kind) + "/" + info.Name
}
