package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/testkit"
)

// template returns the template of pods with an image.
func template(image string) core.PodTemplateSpec {
	return core.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "test"}},
		Spec:       core.PodSpec{Containers: []core.Container{{Name: "web", Image: image, ImagePullPolicy: core.PullAlways}}},
	}
}

var selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "test"}}

// deployment creates a Deployment.
func deployment(t *testing.T, ns, name, image string, replicas int32) *apps.Deployment {
	t.Helper()
	d := &apps.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apps.DeploymentSpec{
		Replicas: &replicas, Selector: selector, Template: template(image),
	}}
	api.must(t, "POST", appsPath(ns, "deployments", ""), d, d)
	return d
}

// statefulSet creates a StatefulSet and waits until its status has its revision.
func statefulSet(t *testing.T, ns, name, image string, replicas int32) {
	t.Helper()
	api.must(t, "POST", appsPath(ns, "statefulsets", ""), &apps.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apps.StatefulSetSpec{
		Replicas: &replicas, Selector: selector, Template: template(image), PodManagementPolicy: apps.ParallelPodManagement,
	}}, nil)
	awaitRevision(t, ns, name)
}

// awaitRevision waits until the status of a StatefulSet has its revision.
func awaitRevision(t *testing.T, ns, name string) {
	t.Helper()
	testkit.EventuallyIn(t, timeout, "the StatefulSet has a revision", func(ctx context.Context) (bool, error) {
		var s apps.StatefulSet
		err := api.Do(ctx, "GET", appsPath(ns, "statefulsets", name), nil, &s)
		return s.Status.UpdateRevision != "" && s.Status.ObservedGeneration == s.Generation, err
	})
}

// daemonSet creates a DaemonSet and waits until its controller has observed it.
func daemonSet(t *testing.T, ns, name, image string) {
	t.Helper()
	d := &apps.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apps.DaemonSetSpec{Selector: selector, Template: template(image)}}
	d.Spec.Template.Spec.Tolerations = []core.Toleration{{Operator: core.TolerationOpExists}}
	api.must(t, "POST", appsPath(ns, "daemonsets", ""), d, nil)
	testkit.EventuallyIn(t, timeout, "the DaemonSet is observed", func(ctx context.Context) (bool, error) {
		var d apps.DaemonSet
		err := api.Do(ctx, "GET", appsPath(ns, "daemonsets", name), nil, &d)
		return d.Status.ObservedGeneration == d.Generation, err
	})
}

// job creates a Job.
func job(t *testing.T, ns, name, image string) {
	t.Helper()
	j := &batch.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batch.JobSpec{Template: template(image)}}
	j.Spec.Template.Spec.RestartPolicy = core.RestartPolicyNever
	api.must(t, "POST", "/apis/batch/v1/namespaces/"+ns+"/jobs", j, nil)
}

// run waits until a controller has created n pods, binds them to the nodes n1 and n2 in turn, and reports that they run
// digests, also in turn. It returns the pods sorted by name.
func run(t *testing.T, ns string, n int, digests ...string) []*core.Pod {
	t.Helper()
	pods := await(t, ns, n)
	for i, p := range pods {
		bind(t, p, []string{"n1", "n2"}[i%2])
		report(t, p, digests[i%len(digests)])
	}
	return pods
}

// await waits until there are n pods, and returns them sorted by name.
func await(t *testing.T, ns string, n int) []*core.Pod {
	t.Helper()
	var pods []*core.Pod
	testkit.EventuallyIn(t, timeout, fmt.Sprintf("there are %d pods", n), func(ctx context.Context) (bool, error) {
		var list struct{ Items []*core.Pod }
		err := api.Do(ctx, "GET", podPath(ns, ""), nil, &list)
		pods = list.Items
		return len(pods) == n, err
	})
	slices.SortFunc(pods, func(a, b *core.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods
}

// rollOut changes the pod template of a Deployment with one pod, and returns the pod of the new ReplicaSet, which runs a
// digest. The old pod stays, because the new one is not ready.
func rollOut(t *testing.T, ns, name string, old *core.Pod, digest string) *core.Pod {
	t.Helper()
	annotations := map[string]any{"annotations": map[string]string{"change": old.Name}}
	api.must(t, "PATCH", appsPath(ns, "deployments", name), map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": annotations}}}, nil)
	return second(t, ns, old, digest)
}

// second waits for a pod beside another one, binds it to node n2, and reports that it runs a digest.
func second(t *testing.T, ns string, first *core.Pod, digest string) *core.Pod {
	t.Helper()
	pods := await(t, ns, 2)
	p := pods[0]
	if p.UID == first.UID {
		p = pods[1]
	}
	bind(t, p, "n2")
	report(t, p, digest)
	return p
}

// bind binds a pod to a node, as the scheduler would. A pod of a DaemonSet has a node already.
func bind(t *testing.T, p *core.Pod, node string) {
	t.Helper()
	if p.Spec.Affinity != nil {
		node = p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
	}
	binding := &core.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: core.ObjectReference{Kind: "Node", Name: node}}
	api.must(t, "POST", podPath(p.Namespace, p.Name)+"/binding", binding, nil)
}

// report reports that the containers of a pod run a digest, as kubelet would. An empty digest reports that it pulls.
func report(t *testing.T, p *core.Pod, digest string) {
	t.Helper()
	id := ""
	if digest != "" {
		id = "registry.example.com/shop/web@" + digest
	}
	status := core.PodStatus{Phase: core.PodRunning}
	for _, c := range p.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, core.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: id})
	}
	for _, c := range p.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, core.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: id})
	}
	api.must(t, "PATCH", podPath(p.Namespace, p.Name)+"/status", map[string]any{"status": status}, p)
}

// ownerOf returns the revision that owns a pod.
func ownerOf(p *core.Pod) v1alpha1.Owner {
	ref := metav1.GetControllerOf(p)
	owner := v1alpha1.Owner{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: ref.UID}
	if ref.Kind != "ReplicaSet" && ref.Kind != "Job" {
		owner.Revision = p.Labels[apps.ControllerRevisionHashLabelKey]
	}
	return owner
}

func podPath(ns, name string) string {
	return strings.TrimSuffix("/api/v1/namespaces/"+ns+"/pods/"+name, "/")
}

func appsPath(ns, resource, name string) string {
	return strings.TrimSuffix("/apis/apps/v1/namespaces/"+ns+"/"+resource+"/"+name, "/")
}
