package kube

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

func controller(apiVersion, kind, name string) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: "owner-1", Controller: &yes, BlockOwnerDeletion: &yes}
}

func TestOwnerOf(t *testing.T) {
	const revisions = "/apis/apps/v1/namespaces/" + namespace + "/controllerrevisions/"
	for _, c := range []struct {
		name       string
		refs       []metav1.OwnerReference
		label      string
		annotation string // mirror
		revision   string // name of a ControllerRevision of owner-1
		foreign    string // name of a ControllerRevision of another owner
		forbidden  bool   // to read ControllerRevisions

		want      string // kind/name@revision of the owner; empty: none
		reference string // kind/name
		requests  int
	}{
		{name: "bare pod", requests: 1},
		{name: "owner that is no controller", refs: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "owner-1"}}, requests: 1},
		{name: "mirror pod", refs: []metav1.OwnerReference{controller("v1", "Node", "n1")}, annotation: "0123", requests: 1},
		{name: "Node without the annotation", refs: []metav1.OwnerReference{controller("v1", "Node", "n1")}, requests: 1},
		{
			name: "Node of another group", refs: []metav1.OwnerReference{controller("example.com/v1", "Node", "a")},
			want: "Node/a@", reference: "Node/a", requests: 1,
		},
		{
			name: "ReplicaSet", refs: []metav1.OwnerReference{controller("apps/v1", "ReplicaSet", "web-7d4b9c")},
			want: "ReplicaSet/web-7d4b9c@", reference: "ReplicaSet/web-7d4b9c", requests: 1,
		},
		{
			name: "ReplicaSet with a label of its user", refs: []metav1.OwnerReference{controller("apps/v1", "ReplicaSet", "web")}, label: "mine",
			want: "ReplicaSet/web@", reference: "ReplicaSet/web", requests: 1,
		},
		{
			name: "ReplicaSet of another group", refs: []metav1.OwnerReference{controller("example.com/v1", "ReplicaSet", "web")}, label: "abc",
			revision: "web-abc", want: "ReplicaSet/web@abc", reference: "ControllerRevision/web-abc", requests: 2,
		},
		{
			name: "Job", refs: []metav1.OwnerReference{controller("batch/v1", "Job", "nightly-29")}, label: "mine",
			want: "Job/nightly-29@", reference: "Job/nightly-29", requests: 1,
		},
		{
			name: "second of two owners is the controller",
			refs: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "other"}, controller("batch/v1", "Job", "j")},
			want: "Job/j@", reference: "Job/j", requests: 1,
		},
		{
			name: "StatefulSet: the label is the name", refs: []metav1.OwnerReference{controller("apps/v1", "StatefulSet", "db")}, label: "db-5f6c",
			revision: "db-5f6c", want: "StatefulSet/db@db-5f6c", reference: "ControllerRevision/db-5f6c", requests: 2,
		},
		{
			name: "DaemonSet: the label is the hash", refs: []metav1.OwnerReference{controller("apps/v1", "DaemonSet", "agent")}, label: "5f6c",
			revision: "agent-5f6c", want: "DaemonSet/agent@5f6c", reference: "ControllerRevision/agent-5f6c", requests: 2,
		},
		{
			name: "DaemonSet whose ControllerRevision is gone", refs: []metav1.OwnerReference{controller("apps/v1", "DaemonSet", "agent")}, label: "5f6c",
			want: "DaemonSet/agent@5f6c", reference: "DaemonSet/agent", requests: 3,
		},
		{
			name: "DaemonSet, ControllerRevisions cannot be read", refs: []metav1.OwnerReference{controller("apps/v1", "DaemonSet", "agent")}, label: "5f6c",
			revision: "agent-5f6c", forbidden: true, want: "DaemonSet/agent@5f6c", reference: "DaemonSet/agent", requests: 2,
		},
		{
			name: "ControllerRevision of another owner", refs: []metav1.OwnerReference{controller("apps/v1", "DaemonSet", "agent")}, label: "5f6c",
			foreign: "agent-5f6c", want: "DaemonSet/agent@5f6c", reference: "DaemonSet/agent", requests: 2,
		},
		{
			name: "custom kind with a revision", refs: []metav1.OwnerReference{controller("apps.kruise.io/v1alpha1", "CloneSet", "cart")}, label: "cart-77",
			revision: "cart-77", want: "CloneSet/cart@cart-77", reference: "ControllerRevision/cart-77", requests: 2,
		},
		{
			name: "custom kind without a revision", refs: []metav1.OwnerReference{controller("kubevirt.io/v1", "VirtualMachineInstance", "vm1")},
			want: "VirtualMachineInstance/vm1@", reference: "VirtualMachineInstance/vm1", requests: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := startServer(t)
			client, _ := a.client()
			pod := a.addPod("p", "pod-1", func(m *metav1.PartialObjectMetadata) {
				m.OwnerReferences = c.refs
				m.Labels = map[string]string{"app": "x"}
				if c.label != "" {
					m.Labels[upstream.RevisionLabel] = c.label
				}
				if c.annotation != "" {
					m.Annotations = map[string]string{upstream.MirrorAnnotation: c.annotation}
				}
			})
			for name, owner := range map[string]types.UID{c.revision: "owner-1", c.foreign: "owner-2"} {
				by := controller("any/v1", "Any", "any")
				by.UID = owner
				a.objects[revisions+name] = metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
					Namespace: namespace, Name: name, UID: "revision-1", OwnerReferences: []metav1.OwnerReference{by},
				}}
			}
			a.on(func(w http.ResponseWriter, r *http.Request) bool {
				if refused := c.forbidden && strings.HasPrefix(r.URL.Path, revisions); refused {
					refuse(w, apierrors.NewForbidden(schema.GroupResource{Resource: "controllerrevisions"}, "x", errors.New("not allowed")))
					return true
				}
				return false
			})
			owner, err := client.OwnerOf(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			requests := a.got()
			if len(requests) != c.requests {
				t.Errorf("got %d requests, want %d: %v", len(requests), c.requests, requests)
			}
			for _, r := range requests {
				if !strings.Contains(r.accept, "as=PartialObjectMetadata") {
					t.Errorf("%s: Accept is %q, want only the metadata", r.path, r.accept)
				}
			}
			if c.want == "" {
				if owner != nil {
					t.Errorf("got %+v, want no owner", owner)
				}
				return
			}
			if owner == nil {
				t.Fatalf("got no owner, want %s", c.want)
			}
			if got := fmt.Sprintf("%s/%s@%s", owner.Kind, owner.Name, owner.Revision); got != c.want || owner.UID != "owner-1" || owner.Namespace != namespace {
				t.Errorf("got %s with UID %s in %s, want %s", got, owner.UID, owner.Namespace, c.want)
			}
			ref := owner.Reference
			if got := ref.Kind + "/" + ref.Name; got != c.reference {
				t.Errorf("got reference %s, want %s", got, c.reference)
			}
			if ref.Controller != nil || ref.BlockOwnerDeletion == nil || *ref.BlockOwnerDeletion {
				t.Errorf("reference %+v must not be a controller and not block the deletion of the owner", ref)
			}
			want := metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: "owner-1", BlockOwnerDeletion: ref.BlockOwnerDeletion}
			if ref.Kind == "ControllerRevision" {
				want.APIVersion, want.Kind, want.Name, want.UID = "apps/v1", "ControllerRevision", c.revision, "revision-1"
			}
			if !reflect.DeepEqual(ref, want) {
				t.Errorf("got reference %+v, want %+v", ref, want)
			}
		})
	}
}

// TestOwnerOfAnotherPod checks that only the pod with the UID counts, and that an old cache of the API server is not
// believed.
func TestOwnerOfAnotherPod(t *testing.T) {
	job := func(m *metav1.PartialObjectMetadata) {
		m.OwnerReferences = []metav1.OwnerReference{controller("batch/v1", "Job", "j")}
	}
	t.Run("deleted", func(t *testing.T) {
		a := startServer(t)
		c, _ := a.client()
		_, err := c.OwnerOf(t.Context(), Pod{namespace, "p", "pod-1"})
		want(t, err, imagepin.UnknownPod, errdefs.ErrNotFound, "the API server has no pod shop/p with UID pod-1")
	})
	t.Run("created again under the same name", func(t *testing.T) {
		a := startServer(t)
		c, _ := a.client()
		a.addPod("p", "pod-2", job)
		_, err := c.OwnerOf(t.Context(), Pod{namespace, "p", "pod-1"})
		want(t, err, imagepin.UnknownPod, errdefs.ErrNotFound, "UID pod-1")
		if _, err := c.OwnerOf(t.Context(), Pod{namespace, "p", "pod-2"}); err != nil {
			t.Errorf("the pod that exists: %v", err)
		}
	})
	t.Run("static pod has another UID than its mirror pod", func(t *testing.T) {
		a := startServer(t)
		c, _ := a.client()
		a.addPod("p", "pod-2", func(m *metav1.PartialObjectMetadata) {
			m.OwnerReferences = []metav1.OwnerReference{controller("v1", "Node", "n1")}
			m.Annotations = map[string]string{upstream.MirrorAnnotation: "0123"}
		})
		if owner, err := c.OwnerOf(t.Context(), Pod{namespace, "p", "0123"}); owner != nil || err != nil {
			t.Errorf("got %v and %v, want no owner", owner, err)
		}
	})
	for name, cached := range map[string]types.UID{"not yet in the cache": "", "the pod before it in the cache": "pod-0"} {
		t.Run(name, func(t *testing.T) {
			a := startServer(t)
			c, _ := a.client()
			pod := a.addPod("p", "pod-1", job)
			a.on(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("resourceVersion") != "0" {
					return false
				}
				if cached == "" {
					refuse(w, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p"))
				} else {
					respond(w, http.StatusOK, metav1.PartialObjectMetadata{
						TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
						ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", UID: cached},
					})
				}
				return true
			})
			owner, err := c.OwnerOf(t.Context(), pod)
			if err != nil || owner == nil || owner.Name != "j" {
				t.Fatalf("got %v and %v, want the Job", owner, err)
			}
			if got := a.got(); len(got) != 2 || got[0].query != "resourceVersion=0" || got[1].query != "" {
				t.Errorf("got requests %v, want one of the cache and one of etcd", got)
			}
		})
	}
}

// TestControllersThatCannotExist checks pods whose ownerReferences have what no object has. They have no owner, and the
// node keeps asking for other pods.
func TestControllersThatCannotExist(t *testing.T) {
	long := strings.Repeat("a", 1000)
	for name, edit := range map[string]func(*metav1.OwnerReference){
		"path":        func(o *metav1.OwnerReference) { o.Name = "a/b" },
		"long name":   func(o *metav1.OwnerReference) { o.Name = long },
		"UID":         func(o *metav1.OwnerReference) { o.UID = "a/b/c" },
		"long UID":    func(o *metav1.OwnerReference) { o.UID = types.UID(long) },
		"kind":        func(o *metav1.OwnerReference) { o.Kind = "Stateful=Set" },
		"long group":  func(o *metav1.OwnerReference) { o.APIVersion = long + "/v1" },
		"empty name":  func(o *metav1.OwnerReference) { o.Name = "" },
		"upper case":  func(o *metav1.OwnerReference) { o.Name = "Web" },
		"line breaks": func(o *metav1.OwnerReference) { o.Kind = "Stateful\nSet" },
	} {
		t.Run(name, func(t *testing.T) {
			a := startServer(t)
			c, _ := a.client()
			o := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "sts-1", Controller: new(bool)}
			*o.Controller = true
			edit(&o)
			pod := a.addPod("db-0", "pod-1", func(m *metav1.PartialObjectMetadata) {
				m.OwnerReferences, m.Labels = []metav1.OwnerReference{o}, map[string]string{upstream.RevisionLabel: "x"}
			})
			if owner, err := c.OwnerOf(t.Context(), pod); err != nil || owner != nil {
				t.Errorf("got %+v and %v, want no owner", owner, err)
			}
			if _, err := c.OwnerOf(t.Context(), webPod); err != nil && !errdefs.IsNotFound(err) {
				t.Errorf("another pod: %v", err)
			}
		})
	}
}

// TestInvalidPods checks that names that the Kubernetes API cannot have are not sent.
func TestInvalidPods(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	for _, pod := range []Pod{
		{"", "p", "u"}, {namespace, "", "u"}, {namespace, "p", ""}, {namespace, "a/b", "u"}, {namespace, "..", "u"}, {"a%2fb", "p", "u"},
	} {
		_, err := c.OwnerOf(t.Context(), pod)
		want(t, err, imagepin.InvalidRequest, errdefs.ErrInvalidArgument, "")
		_, _, err = c.Claim(t.Context(), webOwner(), pod, tag, digestA)
		want(t, err, imagepin.InvalidRequest, errdefs.ErrInvalidArgument, "")
	}
	for _, owner := range []Owner{{}, {Namespace: namespace}, {Namespace: "a/b", Owner: v1alpha1.Owner{Name: "x"}}, {Namespace: namespace, Owner: v1alpha1.Owner{Name: "a/b"}}} {
		_, err := c.Find(t.Context(), owner, tag, true)
		want(t, err, imagepin.InvalidRequest, errdefs.ErrInvalidArgument, "")
	}
	if got := a.got(); len(got) != 0 {
		t.Errorf("got requests %v", got)
	}
}
