package manifests

import (
	"fmt"
	"strings"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
)

// The messages of the rules.
const (
	needsBy       = "a node has to set spec.by"
	otherNode     = "spec.by.node has to be the node that sends the request"
	wrongVersion  = "spec.owner.apiVersion has to be a group and a version, for a controller of Kubernetes version v1"
	noController  = "spec.owner has to be the controller of the pod, and not a Node or the pod itself"
	wrongName     = "metadata.name has to be the name of spec.owner, cut at 242 characters, a dot, and 10 hex digits"
	oneReference  = "metadata.ownerReferences has to have exactly one entry"
	blocking      = "metadata.ownerReferences must not set controller or blockOwnerDeletion"
	wrongOwner    = "metadata.ownerReferences has to have spec.owner or, with a revision, its ControllerRevision"
	wrongPod      = "the name of a pod of a ReplicaSet, ReplicationController, StatefulSet, DaemonSet or Job has to start with that of spec.owner"
	foreignPod    = "spec.by.pod has to be a pod of the node in the namespace of the ImagePin"
	finalizer     = "a node must not set metadata.finalizers"
	tooManyLabels = "a node can set at most 16 labels"
	tooMuchNotes  = "a node can set at most 16 annotations of at most 1024 characters"
)

// Kinds of owners.
const (
	rs     = "apps/v1/ReplicaSet"
	rc     = "v1/ReplicationController"
	sts    = "apps/v1/StatefulSet"
	ds     = "apps/v1/DaemonSet"
	job    = "batch/v1/Job"
	custom = "kubevirt.io/v1/VirtualMachineInstance"
)

// Pods that are not of the node n1 in the namespace of the ImagePin.
const (
	podOfN2      = "web-7d4b9c-onn2n"
	podElsewhere = "web-7d4b9c-elsew"
	podNotBound  = "web-7d4b9c-queue"
	podAbsent    = "web-7d4b9c-nopod"
)

// rules are claims of the node n1 and the messages with which the policy refuses them, or "" for those that it permits.
// Their pods are pods of n1, with the exceptions above.
var rules = []struct {
	name    string
	claim   *v1alpha1.ImagePin
	refused string
}{
	{"a pod of a ReplicaSet", web(), ""},

	{"no claimer", web(func(p *v1alpha1.ImagePin) { p.Spec.By = nil }), needsBy},
	{"another node", web(func(p *v1alpha1.ImagePin) { p.Spec.By.Node = n2 }), otherNode},
	{"a part of the node's name", web(func(p *v1alpha1.ImagePin) { p.Spec.By.Node = "n" }), otherNode},

	{"a static pod", claim("v1/Node", n1, "etcd-n1"), noController},
	{"a Node of another group", claim("example.com/v1/Node", n1, "etcd-n1"), ""},
	{"a Node of another version", claim("v2/Node", n1, "etcd-n1"), wrongVersion},
	{"a pod of another version, that controls pods", claim("v2/Pod", "driver", "exec-1"), wrongVersion},
	{"an API version with an empty group", claim("/v1/Node", n1, "etcd-n1"), wrongVersion},
	{"an API version with an empty version", web(apiVersion("example.com/")), wrongVersion},
	{"an API version with three parts", web(apiVersion("apps/v1/x")), wrongVersion},
	{"a pod without a controller", claim("v1/Pod", "debug", "debug"), noController},
	{"a pod that controls pods", claim("v1/Pod", "driver", "exec-1"), ""},

	{"the name of another owner", web(named("web-7d4b9d.0123456789")), wrongName},
	{"the name without a dot", web(named("web-7d4b9c0123456789")), wrongName},
	{"a name with another separator", web(named("web-7d4b9c-0123456789")), wrongName},
	{"a name without a hash", web(named("web-7d4b9c.0")), wrongName},
	{"9 digits", web(named("web-7d4b9c.012345678")), wrongName},
	{"11 digits", web(named("web-7d4b9c.0123456789a")), wrongName},
	{"digits that are not hex", web(named("web-7d4b9c.012345678g")), wrongName},
	{"more after the digits", web(named("web-7d4b9c.0123456789.a")), wrongName},
	{"any 10 digits", web(named("web-7d4b9c.0123456789")), ""},
	{"an owner with dots", claim(rs, "web.v1", "web.v1-x2x4z"), ""},
	{"an owner of 242 characters", longName(strings.Repeat("o", 242)), ""},
	{"an owner of 243 characters", longName(strings.Repeat("o", 243)), ""},
	{"an owner of 253 characters", longName(strings.Repeat("o", 253)), ""},
	{"a name cut at 241 characters", longName(strings.Repeat("o", 253), named(strings.Repeat("o", 241)+".0123456789")), wrongName},
	{"a name cut too early", longName(strings.Repeat("o", 242), named(strings.Repeat("o", 241)+".0123456789")), wrongName},
	{"an owner cut after a dash", longName(strings.Repeat("o", 240) + "--" + strings.Repeat("p", 11)), ""},
	{"an owner cut after a dot", longName(strings.Repeat("o", 241) + "." + strings.Repeat("p", 11)), ""},

	{"no owner reference", web(owned()), oneReference},
	{"two owner references", web(owned(webOwner, history("web-5f6b"))), oneReference},
	{"a controller reference", web(reference(func(r *metav1.OwnerReference) { r.Controller = new(true) })), blocking},
	{"a reference that blocks deletion", web(reference(func(r *metav1.OwnerReference) { r.BlockOwnerDeletion = new(true) })), blocking},
	{"a reference that blocks nothing", web(reference(func(r *metav1.OwnerReference) { r.Controller, r.BlockOwnerDeletion = new(false), new(false) })), ""},
	{"an owner of another API version", web(reference(func(r *metav1.OwnerReference) { r.APIVersion = "apps/v2" })), wrongOwner},
	{"an owner of another kind", web(reference(func(r *metav1.OwnerReference) { r.Kind = "Deployment" })), wrongOwner},
	{"an owner of another name", web(reference(func(r *metav1.OwnerReference) { r.Name = "web" })), wrongOwner},
	{"an owner of another UID", web(reference(func(r *metav1.OwnerReference) { r.UID = "1" })), wrongOwner},
	{"a revision without its ControllerRevision", claim(ds, "agent", "agent-b7d8f", revision("5f6b")), ""},
	{"the ControllerRevision of a DaemonSet", claim(ds, "agent", "agent-b7d8f", revision("5f6b"), owned(history("agent-5f6b"))), ""},
	{"the ControllerRevision of a StatefulSet", claim(sts, "db", "db-0", revision("db-5f6b"), owned(history("db-5f6b"))), ""},
	{"the ControllerRevision of a name of 224 characters", claim(custom, strings.Repeat("o", 224), "any-pod", revision("5f6b"), owned(history(strings.Repeat("o", 223)+"-5f6b"))), ""},
	{"the ControllerRevision of a name of 224 characters that is not cut", claim(custom, strings.Repeat("o", 224), "any-pod", revision("5f6b"), owned(history(strings.Repeat("o", 224)+"-5f6b"))), ""},
	{"the ControllerRevision of a name that is cut too early", claim(custom, strings.Repeat("o", 223), "any-pod", revision("5f6b"), owned(history(strings.Repeat("o", 222)+"-5f6b"))), wrongOwner},
	{"another ControllerRevision", claim(ds, "agent", "agent-b7d8f", revision("5f6b"), owned(history("agent-5f6c"))), wrongOwner},
	{"the ControllerRevision of another owner", claim(ds, "agent", "agent-b7d8f", revision("5f6b"), owned(history("agent2-5f6b"))), wrongOwner},
	{"a ControllerRevision without a revision", claim(ds, "agent", "agent-b7d8f", owned(history("agent-"))), wrongOwner},
	{"a ControllerRevision of another group", claim(ds, "agent", "agent-b7d8f", revision("5f6b"), owned(history("agent-5f6b")), reference(func(r *metav1.OwnerReference) { r.APIVersion = "example.com/v1" })), wrongOwner},
	{"another object with the name of the ControllerRevision", claim(ds, "agent", "agent-b7d8f", revision("5f6b"), owned(history("agent-5f6b")), reference(func(r *metav1.OwnerReference) { r.Kind = "Deployment" })), wrongOwner},

	{"a pod of a ReplicationController", claim(rc, "web", "web-x2x4z"), ""},
	{"a pod of a StatefulSet", claim(sts, "db", "db-0"), ""},
	{"a pod of a DaemonSet", claim(ds, "agent", "agent-b7d8f"), ""},
	{"a pod of a Job", claim(job, "batch", "batch-k2k4x"), ""},
	{"a pod of an indexed Job", claim(job, "batch", "batch-3-k2k4x"), ""},
	{"a pod of a kind that names its pods as it likes", claim(custom, "vm1", "virt-launcher-vm1-x2x4z"), ""},
	{"a ReplicaSet of another group", claim("example.com/v1/ReplicaSet", "web", "pod-of-it"), ""},
	{"a StatefulSet of another group", claim("apps.kruise.io/v1beta1/StatefulSet", "db", "pod-of-it"), ""},
	{"another kind of the group apps", claim("apps/v1/Deployment", "web", "pod-of-it"), ""},
	{"a pod of another ReplicaSet", claim(rs, "web-7d4b9d", "web-7d4b9c-x2x4z"), wrongPod},
	{"a pod of another ReplicationController", claim(rc, "web2", "web-x2x4z"), wrongPod},
	{"a pod of another StatefulSet", claim(sts, "db2", "db-0"), wrongPod},
	{"a pod of another DaemonSet", claim(ds, "agent2", "agent-b7d8f"), wrongPod},
	{"a pod of another Job", claim(job, "batch2", "batch-k2k4x"), wrongPod},
	{"a pod whose name goes on without a dash", claim(rs, "web-7d4b9c-x2", "web-7d4b9c-x2x4z"), wrongPod},
	{"a pod with the name of its owner", claim(rs, "web-7d4b9c-x2x4z", "web-7d4b9c-x2x4z"), wrongPod},
	{"an owner of 57 characters", claim(rs, strings.Repeat("a", 57), strings.Repeat("a", 57)+"-x2x4z"), ""},
	{"an owner of 58 characters", claim(rs, strings.Repeat("a", 58), strings.Repeat("a", 58)+"x2x4z"), ""},
	{"an owner of 59 characters", claim(ds, strings.Repeat("a", 59), strings.Repeat("a", 58)+"x2x4z"), ""},
	{"an owner of 57 characters without a dash", claim(rs, strings.Repeat("a", 57), strings.Repeat("a", 57)+"x2x4z"), wrongPod},
	{"an owner whose name differs at character 58", claim(rs, strings.Repeat("a", 57)+"bb", strings.Repeat("a", 58)+"x2x4z"), wrongPod},
	{"a StatefulSet, whose pods are not cut", claim(sts, strings.Repeat("a", 59), strings.Repeat("a", 58)+"x2x4z"), wrongPod},
	{"an indexed Job of 55 characters", claim(job, strings.Repeat("a", 55), strings.Repeat("a", 55)+"-3-k2k4x"), ""},
	{"an indexed Job of 56 characters", claim(job, strings.Repeat("a", 56), strings.Repeat("a", 55)+"-3-k2k4x"), ""},
	{"an indexed Job of 61 characters", claim(job, strings.Repeat("a", 59)+"-2", strings.Repeat("a", 53)+"-103-k2k4x"), ""},
	{"a pod of another indexed Job", claim(job, strings.Repeat("a", 54)+"bbb", strings.Repeat("a", 55)+"-3-k2k4x"), wrongPod},

	{"a pod of another node", claim(rs, "web-7d4b9c", podOfN2), foreignPod},
	{"a pod of another namespace", claim(rs, "web-7d4b9c", podElsewhere), foreignPod},
	{"a pod that no node runs", claim(rs, "web-7d4b9c", podNotBound), foreignPod},
	{"a pod that does not exist", claim(rs, "web-7d4b9c", podAbsent), foreignPod},

	{"a finalizer", web(func(p *v1alpha1.ImagePin) { p.Finalizers = []string{"example.com/keep"} }), finalizer},
	{"16 labels", web(func(p *v1alpha1.ImagePin) { p.Labels = some(16, "v") }), ""},
	{"17 labels", web(func(p *v1alpha1.ImagePin) { p.Labels = some(17, "v") }), tooManyLabels},
	{"16 annotations", web(func(p *v1alpha1.ImagePin) { p.Annotations = some(16, strings.Repeat("v", 1024)) }), ""},
	{"17 annotations", web(func(p *v1alpha1.ImagePin) { p.Annotations = some(17, "v") }), tooMuchNotes},
	{"a long annotation", web(func(p *v1alpha1.ImagePin) { p.Annotations = some(1, strings.Repeat("v", 1025)) }), tooMuchNotes},
}

// TestVersionsOfBuiltinOwners checks that a node cannot claim for a controller of Kubernetes whose pods it does not host by another
// version of its group. A kind with the same name in another group names its pods as it likes; other nodes do not use the ImagePin
// for the controller of Kubernetes, see TestForeignPin of package claims.
func TestVersionsOfBuiltinOwners(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	api.runPods(t, ns, pod("pod-of-it", n1))
	for _, owner := range []struct{ group, kind string }{
		{"apps", "ReplicaSet"}, {"", "ReplicationController"}, {"apps", "StatefulSet"}, {"apps", "DaemonSet"}, {"batch", "Job"},
	} {
		for _, group := range []string{owner.group, "example.com", "Apps", "apps.example.com"} {
			for _, version := range []string{"v1", "v1beta1", "v1beta2", "v2", "v9", "V1"} {
				refused := ""
				switch {
				case group == owner.group && version == "v1":
					refused = wrongPod
				case group == owner.group:
					refused = wrongVersion
				}
				apiVersion := strings.TrimPrefix(group+"/"+version, "/")
				t.Run(apiVersion+" "+owner.kind, func(t *testing.T) {
					p := claim(apiVersion+"/"+owner.kind, "web", "pod-of-it")
					wantRefused(t, api.create(testkit.Context(t), n1, ns, p, dryRun), refused)
				})
			}
		}
	}
}

// webOwner is the owner of [web].
var webOwner = web().OwnerReferences[0]

// web is a claim that the policy permits, with changes.
func web(changes ...func(*v1alpha1.ImagePin)) *v1alpha1.ImagePin {
	return claim(rs, "web-7d4b9c", "web-7d4b9c-x2x4z", changes...)
}

// longName is a claim for an owner whose pods have any name.
func longName(owner string, changes ...func(*v1alpha1.ImagePin)) *v1alpha1.ImagePin {
	return claim(custom, owner, "any-pod", changes...)
}

func named(name string) func(*v1alpha1.ImagePin) {
	return func(p *v1alpha1.ImagePin) { p.Name = name }
}

func owned(owners ...metav1.OwnerReference) func(*v1alpha1.ImagePin) {
	return func(p *v1alpha1.ImagePin) { p.OwnerReferences = owners }
}

func reference(change func(*metav1.OwnerReference)) func(*v1alpha1.ImagePin) {
	return func(p *v1alpha1.ImagePin) { change(&p.OwnerReferences[0]) }
}

func apiVersion(text string) func(*v1alpha1.ImagePin) {
	return func(p *v1alpha1.ImagePin) { p.Spec.Owner.APIVersion = text }
}

func revision(name string) func(*v1alpha1.ImagePin) {
	return func(p *v1alpha1.ImagePin) { p.Spec.Owner.Revision = name }
}

// history is a reference to a ControllerRevision.
func history(name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ControllerRevision", Name: name, UID: "7a0e"}
}

// some returns labels or annotations.
func some(n int, value string) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("example.com/%d", i)] = value
	}
	return m
}

func TestRules(t *testing.T) {
	t.Parallel()
	testRules(t, api)
}

// TestRulesOnOldestKubernetes runs the rules in the oldest version of Kubernetes that the manifests support, as far as an
// API server emulates it.
func TestRulesOnOldestKubernetes(t *testing.T) {
	t.Parallel()
	s, err := start(testkit.Context(t), cluster.Options{Authorize: true, EmulatedVersion: "1.34"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	var v version.Info
	s.must(t, "GET", "/version", nil, &v)
	if v.EmulationMajor != "1" || v.EmulationMinor != "34" {
		t.Fatalf("the API server emulates %s.%s, want 1.34", v.EmulationMajor, v.EmulationMinor)
	}
	testRules(t, s)
}

func testRules(t *testing.T, s *server) {
	ns, elsewhere := s.namespace(t), s.namespace(t)
	s.runPods(t, elsewhere, pod(podElsewhere, n1))
	s.must(t, "POST", podPath(ns, ""), pod(podNotBound, ""), nil)
	s.runPods(t, ns, podsOfRules()...)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			wantRefused(t, s.create(testkit.Context(t), n1, ns, r.claim, dryRun), r.refused)
		})
	}
}

// podsOfRules returns the pods of the claims in [rules], bound to their nodes.
func podsOfRules() []*core.Pod {
	pods := []*core.Pod{pod(podOfN2, n2)}
	seen := map[string]bool{podOfN2: true, podElsewhere: true, podNotBound: true, podAbsent: true}
	for _, r := range rules {
		if by := r.claim.Spec.By; by != nil && !seen[by.Pod] {
			seen[by.Pod] = true
			pods = append(pods, pod(by.Pod, n1))
		}
	}
	return pods
}

// wantRefused fails the test unless the policy has refused a claim with a message, or has permitted it if the message is
// empty.
func wantRefused(t *testing.T, err error, message string) {
	t.Helper()
	switch {
	case message == "" && err != nil:
		t.Errorf("got %v, want the claim to be permitted", err)
	case message != "" && (!apierrors.IsInvalid(err) || !strings.HasSuffix(err.Error(), policy+message)):
		t.Errorf("got error %v, want it to be invalid, because %s", err, message)
	}
}

// TestEachRuleIsTested checks that [rules] has a claim that each rule of the policy refuses.
func TestEachRuleIsTested(t *testing.T) {
	t.Parallel()
	refused := map[string]bool{}
	for _, r := range rules {
		refused[r.refused] = true
	}
	for _, v := range theObject[admission.ValidatingAdmissionPolicy](t).Spec.Validations {
		if !refused[v.Message] {
			t.Errorf("no claim is refused with: %s", v.Message)
		}
	}
}

// theObject returns the object of a type in the manifests. There has to be exactly one.
func theObject[T any](t *testing.T) *T {
	t.Helper()
	objects, err := build()
	if err != nil {
		t.Fatal(err)
	}
	kind := fmt.Sprintf("%T", *new(T))
	kind = kind[strings.LastIndex(kind, ".")+1:]
	var found []*T
	for _, o := range objects {
		if o.GetKind() == kind {
			v := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, v); err != nil {
				t.Fatal(err)
			}
			found = append(found, v)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d objects of kind %s, want 1", len(found), kind)
	}
	return found[0]
}

// TestUserOfGroupNodes sends a claim of a user of the nodes' group who is no node.
func TestUserOfGroupNodes(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	u, err := api.User(n1, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, u.Do(testkit.Context(t), "POST", pinPath(ns, "")+dryRun, web(), nil), otherNode)
}

// TestPeopleAreNotRestricted creates an ImagePin that the policy would refuse if a node created it.
func TestPeopleAreNotRestricted(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	p := web(owned(), named("any-name"), func(p *v1alpha1.ImagePin) { p.Spec.By, p.Finalizers = nil, []string{"example.com/keep"} })
	api.must(t, "POST", pinPath(ns, "")+dryRun, p, nil)
}
