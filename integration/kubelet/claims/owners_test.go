package claims

import (
	"cmp"
	"reflect"
	"testing"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	client "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
)

var (
	selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "test"}}
	template = core.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: selector.MatchLabels}, Spec: podSpec("")}
)

func job(name string) *batch.Job {
	j := &batch.Job{ObjectMeta: metav1.ObjectMeta{Name: name}}
	j.Spec.Template.Spec = podSpec("")
	j.Spec.Template.Spec.RestartPolicy = core.RestartPolicyNever
	return j
}

// TestOwners finds the owners of pods that the controllers of Kubernetes have created, and claims for them. The API
// server's admission accepts each claim.
func TestOwners(t *testing.T) {
	t.Parallel()
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	for _, c := range []struct {
		resource string // group, version and resource
		owner    any
		kind     string // apiVersion/kind
		name     string
		// revision is true if the ImagePin is to be deleted with a ControllerRevision.
		revision bool
	}{
		{"apps/v1/replicasets", &apps.ReplicaSet{ObjectMeta: meta("web-7d4b9c"), Spec: apps.ReplicaSetSpec{Selector: selector, Template: template}}, "apps/v1/ReplicaSet", "web-7d4b9c", false},
		{"apps/v1/statefulsets", &apps.StatefulSet{ObjectMeta: meta("db"), Spec: apps.StatefulSetSpec{Selector: selector, Template: template}}, "apps/v1/StatefulSet", "db", true},
		{"apps/v1/daemonsets", &apps.DaemonSet{ObjectMeta: meta("agent"), Spec: apps.DaemonSetSpec{Selector: selector, Template: template}}, "apps/v1/DaemonSet", "agent", true},
		{"batch/v1/jobs", job("once"), "batch/v1/Job", "once", false},
		{"batch/v1/jobs", jobOfCronJob("nightly-29384715"), "batch/v1/Job", "nightly-29384715", false},
	} {
		t.Run(c.kind+" "+c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, kube)
			var created metav1.PartialObjectMetadata
			r.must("POST", r.path(c.resource), c.owner, &created)
			pod := r.podOn(n1)
			owner := r.ownerOf(n1, pod)
			if owner == nil || owner.APIVersion+"/"+owner.Kind != c.kind || owner.Name != c.name || owner.UID != created.UID || owner.Namespace != r.ns {
				t.Fatalf("got %+v, want %s %s with UID %s", owner, c.kind, c.name, created.UID)
			}
			reference := metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}
			if c.revision {
				reference = r.onlyRevision(owner)
			} else if owner.Revision != "" {
				t.Errorf("got revision %s, want none", owner.Revision)
			}
			reference.BlockOwnerDeletion = new(false)
			if !reflect.DeepEqual(owner.Reference, reference) {
				t.Errorf("got reference %+v, want %+v", owner.Reference, reference)
			}
			r.claimsAndFinds(owner, pod)
		})
	}
}

// jobOfCronJob is a Job as the CronJob controller creates it.
func jobOfCronJob(name string) *batch.Job {
	j := job(name)
	j.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: "nightly", UID: "cron-1", Controller: new(true)}}
	return j
}

// onlyRevision returns a reference to the only ControllerRevision of the namespace, and checks that it is the owner's.
func (r *rig) onlyRevision(owner *client.Owner) metav1.OwnerReference {
	r.t.Helper()
	var list apps.ControllerRevisionList
	r.must("GET", r.path("apps/v1/controllerrevisions"), nil, &list)
	if len(list.Items) != 1 || owner.Revision == "" || !metav1.IsControlledBy(&list.Items[0], &metav1.ObjectMeta{UID: owner.UID}) {
		r.t.Fatalf("got revision %q and ControllerRevisions %v", owner.Revision, list.Items)
	}
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ControllerRevision", Name: list.Items[0].Name, UID: list.Items[0].UID}
}

// claimsAndFinds claims as n1 for a pod, and reads the pin as n2.
func (r *rig) claimsAndFinds(owner *client.Owner, pod client.Pod) {
	r.t.Helper()
	if pin, err := r.clients[n1].Find(r.ctx, *owner, tag, true); pin != nil || err != nil {
		r.t.Errorf("before the claim: got %v and %v, want no pin", pin, err)
	}
	pin, created := r.claim(n1, owner, pod, digestA)
	by := v1alpha1.Claimer{Node: n1, Pod: pod.Name, PodUID: pod.UID}
	if !created || pin.Digest != digestA || pin.By == nil || *pin.By != by || pin.UID == "" || pin.CreatedAt.IsZero() {
		r.t.Errorf("got %+v, %v, want a new pin of %v", pin, created, by)
	}
	var object v1alpha1.ImagePin
	r.must("GET", r.path("imagepin.io/v1alpha1/imagepins", pin.Name), nil, &object)
	if object.UID != pin.UID || object.Spec.Owner != owner.Owner || object.Spec.Image != tag || len(object.OwnerReferences) != 1 || object.OwnerReferences[0].UID != owner.Reference.UID {
		r.t.Errorf("the API server has %+v", object)
	}
	found, err := r.clients[n2].Find(r.ctx, *owner, tag, true)
	if err != nil || found == nil || found.UID != pin.UID || found.Digest != digestA || *found.By != by {
		r.t.Errorf("got %+v and %v, want %+v", found, err, pin)
	}
}

// TestOwnersOfOtherKinds finds the owners of pods of controllers that are no part of Kubernetes.
func TestOwnersOfOtherKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, pod, label string
		revision         string // name of the ControllerRevision, if there is one
		controller       types.UID
		apiVersion, kind string // by default those of a VirtualMachineInstance
	}{
		{name: "without revisions", pod: "virt-launcher-vm1-x2x4z"},
		{name: "with the name of a ControllerRevision", pod: "cart-x2x4z", label: "vm1-77f", revision: "vm1-77f", controller: "vm-1"},
		{name: "with the hash of a ControllerRevision", pod: "cart-x2x4z", label: "77f", revision: "vm1-77f", controller: "vm-1"},
		{name: "with a revision of another owner", pod: "cart-x2x4z", label: "77f", revision: "vm1-77f", controller: "vm-2"},
		{name: "with a revision that is no ControllerRevision", pod: "cart-x2x4z", label: "77f"},
		{name: "with the kind of a controller of Kubernetes", pod: "cart-0", label: "vm1-77f", revision: "vm1-77f", controller: "vm-1",
			apiVersion: "apps.kruise.io/v1beta1", kind: "StatefulSet"},
		{name: "with that kind, without revisions", pod: "cart-x2x4z", apiVersion: "example.com/v9", kind: "ReplicaSet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, kube)
			by := metav1.OwnerReference{
				APIVersion: cmp.Or(c.apiVersion, "kubevirt.io/v1"), Kind: cmp.Or(c.kind, "VirtualMachineInstance"),
				Name: "vm1", UID: "vm-1", Controller: new(true),
			}
			revision := &apps.ControllerRevision{}
			if c.revision != "" {
				own := by
				own.UID = c.controller
				revision.Data.Raw = []byte("{}")
				revision.ObjectMeta = metav1.ObjectMeta{Name: c.revision, OwnerReferences: []metav1.OwnerReference{own}}
				r.must("POST", r.path("apps/v1/controllerrevisions"), revision, revision)
			}
			pod := r.addPod(c.pod, n1, func(p *core.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{by}
				if c.label != "" {
					p.Labels = map[string]string{"controller-revision-hash": c.label}
				}
			})
			owner := r.ownerOf(n1, pod)
			reference := types.UID("vm-1")
			if c.controller == "vm-1" {
				reference = revision.UID
			}
			if owner == nil || owner.UID != "vm-1" || owner.APIVersion != by.APIVersion || owner.Kind != by.Kind || owner.Revision != c.label || owner.Reference.UID != reference {
				t.Fatalf("got %+v, want the %s %s with revision %q, and the reference %s", owner, by.APIVersion, by.Kind, c.label, reference)
			}
			r.claimsAndFinds(owner, pod)
		})
	}
}

// TestWithoutOwner checks pods that no workload controls.
func TestWithoutOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, kube)
	if owner := r.ownerOf(n1, r.addPod("bare", n1)); owner != nil {
		t.Errorf("bare pod: got %+v", owner)
	}

	// A mirror pod, as kubelet creates it. The static pod has the hash as its UID.
	var node core.Node
	r.must("GET", "/api/v1/nodes/"+n1, nil, &node)
	const hash = "4f2a91c07b0d8e3f4f2a91c07b0d8e3f"
	kubelet, err := r.User("system:node:"+n1, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	mirror := &core.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "static-n1", Annotations: map[string]string{core.MirrorPodAnnotationKey: hash, "kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n1, UID: node.UID, Controller: new(true)}},
		},
		Spec: podSpec(n1),
	}
	if err := kubelet.Do(r.ctx, "POST", r.path("v1/pods"), mirror, mirror); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []types.UID{hash, mirror.UID} {
		if owner := r.ownerOf(n1, client.Pod{Namespace: r.ns, Name: "static-n1", UID: uid}); owner != nil {
			t.Errorf("static pod with UID %s: got %+v", uid, owner)
		}
	}
}
