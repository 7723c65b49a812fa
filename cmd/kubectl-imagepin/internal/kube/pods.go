// Package kube reads and writes what the commands need in a cluster: pods, revisions of workloads and ImagePins.
package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/pager"
)

// EachPod lists pods and calls fn for each. It requests chunk pods at a time, or all at once if chunk is 0. The
// namespace is empty for all namespaces.
func EachPod(ctx context.Context, client corev1client.PodsGetter, namespace string, opts metav1.ListOptions, chunk int64, fn func(*corev1.Pod)) error {
	p := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return client.Pods(namespace).List(ctx, opts)
	})
	p.PageSize = chunk
	return p.EachListItem(ctx, opts, func(obj runtime.Object) error {
		fn(obj.(*corev1.Pod))
		return nil
	})
}
