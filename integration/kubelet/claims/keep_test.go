package claims

import (
	"context"
	"testing"
	"time"

	ctdnamespaces "github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	claim "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// TestScaledToZero expires the pins of a node that nothing has used for long. The copy of an ImagePin stays while the cluster has its
// revision, which is scaled to zero, and while the API server is away. It expires when the revision is deleted.
func TestScaledToZero(t *testing.T) {
	t.Parallel()
	s := startServer(t, cluster.Options{})
	r := newRig(t, s)
	if err := s.install(r.ctx, manifests...); err != nil {
		t.Fatal(err)
	}
	if err := s.AwaitImagePins(r.ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.StartControllers("replicaset-controller", "garbage-collector-controller"); err != nil {
		t.Fatal(err)
	}
	set := &apps.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: apps.ReplicaSetSpec{
		Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: core.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: podSpec("")},
	}}
	r.must("POST", r.path("apps/v1/replicasets"), set, set)
	pod := r.podOn(n1)
	owner := r.ownerOf(n1, pod)
	r.claim(n1, owner, pod, digestA)

	node := ctdtest.New(t)
	ctx := ctdnamespaces.WithNamespace(r.ctx, pin.Namespace)
	pins := pin.New(pin.Config{Images: node.Images, Namespaces: ctdtest.Namespaces{DB: node.DB}})
	if err := pins.Load(ctx); err != nil {
		t.Fatal(err)
	}
	root := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.Digest(digestA), Size: 1}
	scope := policy.OwnerScope(r.ns, policy.Owner{Kind: owner.Kind, Name: owner.Name, UID: string(owner.UID)})
	byLabel := policy.WorkloadScope(r.ns, "pod-template-hash", "1")
	if _, err := pins.Follow(ctx, pin.ID{Scope: scope, Ref: tag}, root, false, n1); err != nil {
		t.Fatal(err)
	}
	// expire expires what was not used for long, with a member that has not asked before.
	expire := func(what string, stays ...policy.Scope) {
		t.Helper()
		if _, err := pins.MakeForNamespace(ctx, r.ns, pin.ID{Scope: byLabel, Ref: tag}, root, pin.ByUse, false); err != nil {
			t.Fatal(err)
		}
		m, err := claim.Join(claim.Settings{Kubeconfig: s.kubeconfig(n1), Timeout: time.Minute}, pins, nil, nil, ignored{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := pins.Expire(ctx, time.Now().Add(time.Hour), func(pin.ID) bool { return false }, m.Keep); err != nil {
			t.Fatal(err)
		}
		var left []policy.Scope
		for _, p := range pins.List() {
			left = append(left, p.Scope)
		}
		if len(left) != len(stays) || len(stays) == 1 && left[0] != stays[0] {
			t.Errorf("%s: got pins in the scopes %q, want %q", what, left, stays)
		}
	}

	r.must("PATCH", r.path("apps/v1/replicasets", "web"), map[string]any{"spec": map[string]any{"replicas": 0}}, nil)
	r.must("DELETE", r.path("v1/pods", pod.Name), &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, nil)
	expire("scaled to zero", scope)
	if err := s.KillServer(); err != nil {
		t.Fatal(err)
	}
	expire("the API server is away", scope)
	if err := s.StartServer(r.ctx); err != nil {
		t.Fatal(err)
	}
	expire("the API server is there again", scope)

	r.must("DELETE", r.path("apps/v1/replicasets", "web"), &metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}, nil)
	deleted, cancel := context.WithTimeout(r.ctx, 2*time.Minute)
	defer cancel()
	if _, err := cluster.Await[v1alpha1.ImagePin](deleted, s.Client, r.path("imagepin.io/v1alpha1/imagepins"), "", func(all []v1alpha1.ImagePin) bool {
		return len(all) == 0
	}); err != nil {
		t.Fatalf("Kubernetes has not deleted the ImagePin: %v", err)
	}
	expire("the revision is deleted")
}
