package kube

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Owners returns the UIDs of the owners of all revisions of a workload: the ReplicaSets of a Deployment, otherwise the workload.
func (f *Finder) Owners(ctx context.Context, obj *unstructured.Unstructured) (map[string]bool, error) {
	if obj.GroupVersionKind().Group != appsv1.GroupName || obj.GetKind() != "Deployment" {
		return map[string]bool{string(obj.GetUID()): true}, nil
	}
	var d appsv1.Deployment
	if err := decode(obj, &d); err != nil {
		return nil, err
	}
	sets, err := f.ReplicaSets(ctx, &d, selected(d.Spec.Selector))
	uids := make(map[string]bool)
	for _, rs := range sets {
		uids[string(rs.UID)] = true
	}
	return uids, err
}
