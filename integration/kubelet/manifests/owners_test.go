package manifests

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestOwners lets two nodes claim for pods that the controllers of Kubernetes create, with the names and revisions that
// they give them. One of the nodes wins. Kubernetes deletes the ImagePin with its owner.
func TestOwners(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, resource string
		owner          func(metav1.ObjectMeta, core.PodTemplateSpec) any
		name           string
	}{
		{"ReplicaSet", "apps/v1/replicasets", replicaSet, "web-7d4b9c"},
		{"ReplicaSet of 57 characters", "apps/v1/replicasets", replicaSet, long(57)},
		{"ReplicaSet of 58 characters", "apps/v1/replicasets", replicaSet, long(58)},
		{"ReplicaSet of 253 characters", "apps/v1/replicasets", replicaSet, long(253)},
		{"StatefulSet", "apps/v1/statefulsets", statefulSet, "db"},
		// Longer names of ControllerRevisions are not valid as the label of a pod.
		{"StatefulSet of 52 characters", "apps/v1/statefulsets", statefulSet, long(52)},
		{"DaemonSet", "apps/v1/daemonsets", daemonSet, "agent"},
		{"DaemonSet of 63 characters", "apps/v1/daemonsets", daemonSet, long(63)},
		// Longer names do not leave enough characters for the name of the ControllerRevision.
		{"DaemonSet of 242 characters", "apps/v1/daemonsets", daemonSet, long(242)},
		{"Job", "batch/v1/jobs", plainJob, "batch"},
		// Longer names are not valid as the label of a pod.
		{"Job of 63 characters", "batch/v1/jobs", plainJob, long(63)},
		{"indexed Job", "batch/v1/jobs", indexedJob, "batch"},
		// Longer names are not valid as the host name of a pod.
		{"indexed Job of 61 characters", "batch/v1/jobs", indexedJob, long(61)},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			ns := api.namespace(t)
			group, resource := path.Split(c.resource)
			labels := map[string]string{"app": "test"}
			template := core.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: core.PodSpec{Containers: containers}}
			owners := "/apis/" + group + "namespaces/" + ns + "/" + resource
			api.must(t, "POST", owners, c.owner(metav1.ObjectMeta{Name: c.name}, template), nil)
			pin := testClaims(t, ns, c.name, podOn(t, ns, n1), podOn(t, ns, n2))
			api.must(t, "DELETE", owners+"/"+c.name, asKubectl, nil)
			api.waitDeleted(t, ns, pin)
		})
	}
}

var (
	two      = int32(2)
	selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "test"}}
	// asKubectl deletes as kubectl does. By default, the API server keeps what a Job owns.
	asKubectl = &metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
)

func replicaSet(m metav1.ObjectMeta, template core.PodTemplateSpec) any {
	return &apps.ReplicaSet{ObjectMeta: m, Spec: apps.ReplicaSetSpec{Replicas: &two, Selector: selector, Template: template}}
}

func statefulSet(m metav1.ObjectMeta, template core.PodTemplateSpec) any {
	return &apps.StatefulSet{ObjectMeta: m, Spec: apps.StatefulSetSpec{
		Replicas: &two, Selector: selector, Template: template, PodManagementPolicy: apps.ParallelPodManagement,
	}}
}

func daemonSet(m metav1.ObjectMeta, template core.PodTemplateSpec) any {
	return &apps.DaemonSet{ObjectMeta: m, Spec: apps.DaemonSetSpec{Selector: selector, Template: template}}
}

func plainJob(m metav1.ObjectMeta, template core.PodTemplateSpec) any {
	template.Spec.RestartPolicy = core.RestartPolicyNever
	return &batch.Job{ObjectMeta: m, Spec: batch.JobSpec{Completions: &two, Parallelism: &two, Template: template}}
}

func indexedJob(m metav1.ObjectMeta, template core.PodTemplateSpec) any {
	j := plainJob(m, template).(*batch.Job)
	j.Spec.CompletionMode = new(batch.IndexedCompletion)
	return j
}

// long returns a name of n characters that changes where names are cut.
func long(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "a%db", i)
	}
	return b.String()[:n-1] + "z"
}

// podOn waits for a pod that can run on a node, binds it to the node as the scheduler would, and waits until the node can
// read it.
func podOn(t *testing.T, ns, node string) *core.Pod {
	t.Helper()
	found := await(t, api, podPath(ns, "")+"?watch=true", "a pod for node "+node, func(_ watch.EventType, p *core.Pod) bool {
		return p.Spec.NodeName == "" && mayRun(p, node)
	})
	binding := &core.Binding{ObjectMeta: metav1.ObjectMeta{Name: found.Name}, Target: core.ObjectReference{Kind: "Node", Name: node}}
	api.must(t, "POST", podPath(ns, found.Name)+"/binding", binding, nil)
	api.waitForNode(t, ns, found.Name, node)
	return found
}

// mayRun reports whether a pod may run on a node. The DaemonSet controller creates each pod for one node.
func mayRun(p *core.Pod, node string) bool {
	if p.Spec.Affinity == nil {
		return true
	}
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.Contains(terms[0].MatchFields[0].Values, node)
}

// testClaims claims as two nodes for their pods of one revision of an owner, and returns the ImagePin.
func testClaims(t *testing.T, ns, ownerName string, pod1, pod2 *core.Pod) *v1alpha1.ImagePin {
	t.Helper()
	ctx := testkit.Context(t)
	owner := ownerOf(pod1)
	if owner.Name != ownerName {
		t.Fatalf("got owner %s, want %s", owner.Name, ownerName)
	}
	if other := ownerOf(pod2); other != owner {
		t.Fatalf("got owners %v and %v, want one", owner, other)
	}
	t.Logf("owner %v, pods %s and %s", owner, pod1.Name, pod2.Name)

	first, second := claimOf(owner, n1, pod1.Name, pod1.UID), claimOf(owner, n2, pod2.Name, pod2.UID)
	if owner.Revision != "" {
		// Both references are permitted. The ImagePin is created with that to the ControllerRevision.
		wantRefused(t, api.create(ctx, n1, ns, first, dryRun), "")
		first.OwnerReferences = []metav1.OwnerReference{api.controllerRevision(t, ns, n1, owner)}
		second.OwnerReferences = first.OwnerReferences
	}
	foreign := claimOf(owner, n2, pod1.Name, pod1.UID)
	wantRefused(t, api.create(ctx, n2, ns, foreign, ""), foreignPod)
	wantRefused(t, api.create(ctx, n1, ns, first, ""), "")
	if err := api.create(ctx, n2, ns, second, ""); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second claim: got error %v, want that the ImagePin exists", err)
	}
	var got v1alpha1.ImagePin
	if err := api.nodes[n2].Do(ctx, "GET", pinPath(ns, second.Name), nil, &got); err != nil {
		t.Fatal(err)
	}
	if *got.Spec.By != *first.Spec.By || got.Spec.Owner != owner || got.Spec.Digest != digest {
		t.Errorf("got %+v of %+v, want what %s has created", got.Spec, got.Spec.By, n1)
	}
	return &got
}

// ownerOf returns the owner of a pod and its revision.
func ownerOf(p *core.Pod) v1alpha1.Owner {
	ref := metav1.GetControllerOf(p)
	return v1alpha1.Owner{
		APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: ref.UID, Revision: p.Labels[apps.ControllerRevisionHashLabelKey],
	}
}

// controllerRevision reads the ControllerRevision of an owner as a node, which knows its name only from the pod's label.
func (s *server) controllerRevision(t *testing.T, ns, node string, owner v1alpha1.Owner) metav1.OwnerReference {
	t.Helper()
	var errs []error
	for _, name := range []string{owner.Revision, owner.Name + "-" + owner.Revision} {
		var r apps.ControllerRevision
		err := s.nodes[node].Do(testkit.Context(t), "GET", "/apis/apps/v1/namespaces/"+ns+"/controllerrevisions/"+name, nil, &r)
		if err == nil {
			return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ControllerRevision", Name: name, UID: r.UID}
		}
		errs = append(errs, err)
	}
	t.Fatal(errors.Join(errs...))
	return metav1.OwnerReference{}
}

// TestOwnerOfCustomKind claims for a pod of a controller that is no part of Kubernetes.
func TestOwnerOfCustomKind(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	vm := metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "vm1", UID: "47b9", Controller: new(true)}
	pod1, pod2 := pod("virt-launcher-vm1-x2x4z", n1, vm), pod("virt-launcher-vm1-b7d8f", n2, vm)
	api.runPods(t, ns, pod1, pod2)
	pod1.UID, pod2.UID = "1", "2"
	testClaims(t, ns, "vm1", pod1, pod2)
}

// TestNoController claims for pods without a controller: nodes pin their images locally.
func TestNoController(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	var node core.Node
	api.must(t, "GET", "/api/v1/nodes/"+n1, nil, &node)
	static := pod("etcd-n1", n1, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: n1, UID: node.UID, Controller: new(true)})
	bare := pod("debug", n1)
	api.runPods(t, ns, static, bare)
	itself := v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Name: bare.Name, UID: "1"}
	for _, c := range []*v1alpha1.ImagePin{claimOf(ownerOf(static), n1, static.Name, "1"), claimOf(itself, n1, bare.Name, "1")} {
		wantRefused(t, api.create(testkit.Context(t), n1, ns, c, ""), noController)
	}
}
