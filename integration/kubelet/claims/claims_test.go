package claims

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/pkg/imagepin"
	client "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
)

// webPod adds a pod of the ReplicaSet web-7d4b9c with the UID rs-1, which does not have to exist.
func (r *rig) webPod(name, node string) client.Pod {
	r.t.Helper()
	return r.addPod("web-7d4b9c-"+name, node, controlledBy("apps/v1", "ReplicaSet", "web-7d4b9c", "rs-1"))
}

// TestClaimsAtOnce lets many pods of two nodes claim one pin with two digests. One creates it, and all get it.
func TestClaimsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, kube)
	type claim struct {
		node    string
		pod     client.Pod
		digest  digest.Digest
		pin     client.Pin
		created bool
		err     error
	}
	var claims []*claim
	for i := range 5 {
		claims = append(claims,
			&claim{node: n1, pod: r.webPod(fmt.Sprintf("a%d", i), n1), digest: digestA},
			&claim{node: n2, pod: r.webPod(fmt.Sprintf("b%d", i), n2), digest: digestB})
	}
	var owner *client.Owner
	for _, c := range claims {
		owner = r.ownerOf(c.node, c.pod)
	}
	var wg sync.WaitGroup
	for _, c := range claims {
		wg.Go(func() {
			c.pin, c.created, c.err = r.clients[c.node].Claim(r.ctx, *owner, c.pod, tag, c.digest)
		})
	}
	wg.Wait()
	var winner *claim
	for _, c := range claims {
		if c.err != nil {
			t.Fatal(c.err)
		}
		if c.created {
			if winner != nil {
				t.Fatalf("%v and %v have created the pin", winner.pod, c.pod)
			}
			winner = c
		}
	}
	if winner == nil {
		t.Fatal("no claim has created the pin")
	}
	for _, c := range claims {
		if c.pin.UID != winner.pin.UID || c.pin.Digest != winner.digest || c.pin.By.Pod != winner.pod.Name || c.pin.By.Node != winner.node {
			t.Errorf("%v got %+v, want the pin of %v", c.pod, c.pin, winner.pod)
		}
	}
	var list v1alpha1.ImagePinList
	r.must("GET", r.path("imagepin.io/v1alpha1/imagepins"), nil, &list)
	if len(list.Items) != 1 {
		t.Errorf("there are %d ImagePins, want 1", len(list.Items))
	}
}

// TestRefreshedPin checks a pin that a person changes, and one that a person deletes.
func TestRefreshedPin(t *testing.T) {
	t.Parallel()
	r := newRig(t, kube)
	pod := r.webPod("x", n1)
	owner := r.ownerOf(n1, pod)
	first, _ := r.claim(n1, owner, pod, digestA)
	path := r.path("imagepin.io/v1alpha1/imagepins", first.Name)
	r.must("PATCH", path, map[string]any{"spec": map[string]any{"digest": digestB}}, nil)
	if moved, created := r.claim(n1, owner, pod, digestA); created || moved.Digest != digestB || moved.UID != first.UID {
		t.Errorf("got %+v, %v, want the changed pin", moved, created)
	}
	r.must("DELETE", path, nil, nil)
	if again, created := r.claim(n1, owner, pod, digestA); !created || again.Digest != digestA || again.UID == first.UID {
		t.Errorf("got %+v, %v, want a new pin", again, created)
	}
}

// TestPodCreatedAgain checks a pod that is deleted and created again under its name.
func TestPodCreatedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, kube)
	first := r.webPod("x", n1)
	if owner := r.ownerOf(n1, first); owner == nil || owner.UID != "rs-1" {
		t.Errorf("got %+v", owner)
	}
	r.must("DELETE", r.path("v1/pods", first.Name), &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, nil)
	second := r.addPod(first.Name, n1, controlledBy("apps/v1", "ReplicaSet", "web-7d4b9c", "rs-2"))
	if owner := r.ownerOf(n1, second); owner == nil || owner.UID != "rs-2" {
		t.Errorf("got %+v, want the owner of the second pod", owner)
	}
	_, err := r.clients[n1].OwnerOf(r.ctx, first)
	want(t, err, imagepin.UnknownPod, errdefs.ErrNotFound, "the API server has no pod "+first.String()+" with UID "+string(first.UID))
}

// TestStolenKubeconfig claims with a copy of a node's kubeconfig, in another place: for pods of the node only, and for none
// when the node has no pods any more. Then it registers the node again, and claims for a mirror pod: docs/security.md names
// this limit.
func TestStolenKubeconfig(t *testing.T) {
	t.Parallel()
	r := newRig(t, kube)
	const victim = "stolen"
	r.must("POST", "/api/v1/nodes", &core.Node{ObjectMeta: metav1.ObjectMeta{Name: victim}}, nil)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if _, err := r.WriteNodeKubeconfig(kubeconfig, victim, ""); err != nil {
		t.Fatal(err)
	}
	thief := newClient(t, client.Config{Kubeconfig: kubeconfig, Timeout: time.Minute})
	pod, other := r.webPod("x", victim), r.webPod("y", n1)
	owner := r.ownerOf(n1, other)
	claim := func(image string, pod client.Pod) error {
		_, _, err := thief.Claim(r.ctx, *owner, pod, image, digestA)
		return err
	}
	refused := "denied request: spec.by.pod has to be a pod of the node in the namespace of the ImagePin"
	want(t, claim(tag, other), imagepin.ClaimRefused, errdefs.ErrPermissionDenied, refused)
	testkit.EventuallyIn(t, time.Minute, "the thief claims for a pod of the node", func(context.Context) (bool, error) {
		err := claim(tag, pod) // the Node authorizer learns of the pod a moment later
		if errdefs.IsPermissionDenied(err) {
			return false, nil
		}
		return err == nil, err
	})
	r.must("DELETE", r.path("v1/pods", pod.Name), &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, nil)
	r.must("DELETE", "/api/v1/nodes/"+victim, nil, nil)
	var refusal error
	attempt := 0
	testkit.EventuallyIn(t, time.Minute, "the claims of the thief are refused", func(context.Context) (bool, error) {
		attempt++
		err := claim(fmt.Sprintf("registry.example.com/shop/web:v%d", attempt), pod)
		if errdefs.IsPermissionDenied(err) {
			refusal = err
			return true, nil
		}
		return false, err
	})
	want(t, refusal, imagepin.ClaimRefused, errdefs.ErrPermissionDenied, refused)

	mirror := r.mirrorPod(victim, "web-7d4b9c-z")
	testkit.EventuallyIn(t, time.Minute, "the thief claims for a mirror pod", func(context.Context) (bool, error) {
		attempt++
		err := claim(fmt.Sprintf("registry.example.com/shop/web:v%d", attempt), mirror)
		if errdefs.IsPermissionDenied(err) {
			return false, nil
		}
		return err == nil, err
	})
	r.must("DELETE", "/api/v1/nodes/"+victim, nil, nil)
}

// mirrorPod registers a node with its own credential, and creates a mirror pod of it.
func (r *rig) mirrorPod(node, name string) client.Pod {
	r.t.Helper()
	self, err := r.Node(node)
	if err != nil {
		r.t.Fatal(err)
	}
	registered := &core.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := self.Do(r.ctx, "POST", "/api/v1/nodes", registered, registered); err != nil {
		r.t.Fatal(err)
	}
	pod := &core.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{core.MirrorPodAnnotationKey: "any"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: registered.UID, Controller: new(true)}},
		},
		Spec: podSpec(node),
	}
	testkit.EventuallyIn(r.t, time.Minute, "the node creates a mirror pod", func(ctx context.Context) (bool, error) {
		err := self.Do(ctx, "POST", r.path("v1/pods"), pod, pod)
		if apierrors.IsNotFound(err) {
			return false, nil // admission learns of the node a moment later
		}
		return err == nil, err
	})
	return client.Pod{Namespace: r.ns, Name: name, UID: pod.UID}
}

// TestForeignPin checks an object with the name of a pin that is for something else.
func TestForeignPin(t *testing.T) {
	t.Parallel()
	r := newRig(t, kube)
	pod := r.webPod("x", n1)
	owner := r.ownerOf(n1, pod)
	other := owner.Owner
	other.UID = "rs-0"
	r.must("POST", r.path("imagepin.io/v1alpha1/imagepins"), &v1alpha1.ImagePin{
		TypeMeta:   metav1.TypeMeta{APIVersion: "imagepin.io/v1alpha1", Kind: "ImagePin"},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Name(owner.Owner, tag)},
		Spec:       v1alpha1.ImagePinSpec{Image: tag, Digest: digestB, Owner: other},
	}, nil)
	_, err := r.clients[n1].Find(r.ctx, *owner, tag, true)
	for err == nil && r.ctx.Err() == nil { // the API server's cache does not have it yet
		_, err = r.clients[n1].Find(r.ctx, *owner, tag, true)
	}
	want(t, err, imagepin.ForeignPin, errdefs.ErrFailedPrecondition, "is for ReplicaSet web-7d4b9c with UID rs-0, not for ReplicaSet web-7d4b9c with UID rs-1")
	_, _, err = r.clients[n1].Claim(r.ctx, *owner, pod, tag, digestA)
	want(t, err, imagepin.ForeignPin, errdefs.ErrFailedPrecondition, "is for ReplicaSet web-7d4b9c with UID rs-0")

	elsewhere := r.addPod("any-pod-of-n2", n2)
	r.ownerOf(n2, elsewhere) // waits until the node may read it
	for _, kind := range []string{"apps/v1 ReplicaSet", "v1 ReplicationController", "apps/v1 StatefulSet", "apps/v1 DaemonSet", "batch/v1 Job"} {
		r.foreignGroup(kind, elsewhere)
	}
}

// foreignGroup claims for a controller of Kubernetes from n2, which does not host its pods, in the name of another group. The
// admission policy cannot refuse that, so n1 does not use the ImagePin. n2 cannot claim with another version of the group.
func (r *rig) foreignGroup(kind string, elsewhere client.Pod) {
	r.t.Helper()
	apiVersion, kind, _ := strings.Cut(kind, " ")
	pod := r.addPod(strings.ToLower(kind)+"-x", n1, controlledBy(apiVersion, kind, strings.ToLower(kind), types.UID(kind)))
	owner := r.ownerOf(n1, pod)
	as := func(apiVersion string) error {
		wrong := *owner
		wrong.APIVersion, wrong.Reference.APIVersion = apiVersion, apiVersion
		_, _, err := r.clients[n2].Claim(r.ctx, wrong, elsewhere, tag, digestB)
		return err
	}
	group := strings.TrimSuffix(apiVersion, "v1")
	for _, version := range []string{"v1beta1", "v9"} {
		want(r.t, as(group+version), imagepin.ClaimRefused, errdefs.ErrPermissionDenied, "for a controller of Kubernetes version v1")
	}
	want(r.t, as(apiVersion), imagepin.ClaimRefused, errdefs.ErrPermissionDenied, "has to start with that of spec.owner")
	if err := as("example.com/v1"); err != nil {
		r.t.Fatal(err)
	}
	_, _, err := r.clients[n1].Claim(r.ctx, *owner, pod, tag, digestA)
	want(r.t, err, imagepin.ForeignPin, errdefs.ErrFailedPrecondition,
		fmt.Sprintf("is for example.com/v1 %[1]s %[2]s with UID %[1]s, not for %[1]s %[2]s with UID %[1]s", kind, owner.Name))
}

// TestRefusedClaims checks claims that the API server refuses, and that they do not stop other calls.
func TestRefusedClaims(t *testing.T) {
	t.Parallel()
	r := newRig(t, kube)
	pod := r.webPod("x", n1)
	owner := r.ownerOf(n1, pod)

	_, err := r.clients[n2].OwnerOf(r.ctx, pod)
	want(t, err, imagepin.ClaimRefused, errdefs.ErrPermissionDenied, "no relationship found between node 'n2' and this object")
	_, _, err = r.clients[n2].Claim(r.ctx, *owner, pod, tag, digestA)
	want(t, err, imagepin.ClaimRefused, errdefs.ErrPermissionDenied, "denied request: spec.by.pod has to be a pod of the node in the namespace of the ImagePin")
	_, _, err = r.clients[n1].Claim(r.ctx, *owner, pod, "not-normalized", digestA)
	want(t, err, imagepin.ClaimRefused, errdefs.ErrPermissionDenied, "spec.image")
	if _, created := r.claim(n1, owner, pod, digestA); !created {
		t.Error("a claim after those that were refused has not created the pin")
	}

	// Nothing can be created in a namespace that is terminating. It has the finalizer of a controller that does not run.
	r.must("DELETE", "/api/v1/namespaces/"+r.ns, nil, nil)
	_, _, err = r.clients[n1].Claim(r.ctx, *owner, pod, "registry.example.com/shop/web:v8", digestA)
	want(t, err, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, "because it is being terminated")
	if pin, err := r.clients[n1].Find(r.ctx, *owner, tag, true); err != nil || pin == nil {
		t.Errorf("got %v and %v, want the pin", pin, err)
	}

	gone := *owner
	gone.Namespace = "no-such-namespace"
	_, _, err = r.clients[n1].Claim(r.ctx, gone, client.Pod{Namespace: gone.Namespace, Name: pod.Name, UID: pod.UID}, tag, digestA)
	want(t, err, imagepin.ClaimRefused, errdefs.ErrPermissionDenied, "no-such-namespace")
}

// TestCredentials checks credentials that are not those of a node.
func TestCredentials(t *testing.T) {
	t.Parallel()
	r := newRig(t, kube)
	pod := r.webPod("x", n1)
	owner := r.ownerOf(n1, pod)
	claim := func(kubeconfig string) (client.Pin, error) {
		t.Helper()
		pin, _, err := newClient(t, client.Config{Kubeconfig: kubeconfig}).Claim(r.ctx, *owner, pod, tag, digestA)
		return pin, err
	}
	_, err := claim(r.Kubeconfig())
	want(t, err, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, `its user "admin" is not a node`)

	// Service accounts, with a token that is bound to nothing, and one that is bound to the node.
	r.must("POST", r.path("v1/serviceaccounts"), &core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "imagepin"}}, nil)
	r.must("POST", r.path("rbac.authorization.k8s.io/v1/rolebindings"), &rbac.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "imagepin"}, RoleRef: rbac.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "imagepin-node"},
		Subjects: []rbac.Subject{{Kind: "ServiceAccount", Namespace: r.ns, Name: "imagepin"}},
	}, nil)
	var node core.Node
	r.must("GET", "/api/v1/nodes/"+n1, nil, &node)
	serviceAccount := func(bound *authentication.BoundObjectReference) string {
		t.Helper()
		request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{BoundObjectRef: bound}}
		r.must("POST", r.path("v1/serviceaccounts", "imagepin", "token"), request, request)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(request.Status.Token), 0o600); err != nil {
			t.Fatal(err)
		}
		kubeconfig := filepath.Join(dir, "kubeconfig")
		text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"https://%s","insecure-skip-tls-verify":true}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{"tokenFile":"token"}}]}`, r.Server())
		if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return kubeconfig
	}
	_, err = claim(serviceAccount(nil))
	want(t, err, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, "is a service account, and the token is not bound to a node")
	pin, err := claim(serviceAccount(&authentication.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: n1, UID: node.UID}))
	if err != nil || pin.By.Node != n1 {
		t.Errorf("got %+v and %v, want a claim of n1", pin, err)
	}
}
