package manifests

import (
	"context"
	"path"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/testkit"
)

const (
	image  = "registry.example.com/shop/web:v7"
	digest = "sha256:0a4d33c8e917b2c7d1f0a4d33c8e917b2c7d1f0a4d33c8e917b2c7d1f0a4d33c"
	// policy is the beginning of the API server's message when the policy refuses a claim.
	policy = "ValidatingAdmissionPolicy 'imagepin-node' with binding 'imagepin-node' denied request: "
	// dryRun makes the API server check a request without storing the object.
	dryRun = "?dryRun=All"
)

// claim returns what the node n1 creates for a pod of an owner without a revision. kind has the owner's API version, for
// example apps/v1/ReplicaSet.
func claim(kind, owner, pod string, changes ...func(*v1alpha1.ImagePin)) *v1alpha1.ImagePin {
	o := v1alpha1.Owner{APIVersion: path.Dir(kind), Kind: path.Base(kind), Name: owner, UID: "f9b1c6de-0b3f-4f5e-9d0f-0f7f5f0c9a11"}
	p := claimOf(o, n1, pod, "0c2f4a86-54f8-4d0f-8c39-2d6b3c7c7d10")
	for _, change := range changes {
		change(p)
	}
	return p
}

// claimOf returns what a node creates for a pod of an owner. It is owned by the owner.
func claimOf(owner v1alpha1.Owner, node, pod string, uid types.UID) *v1alpha1.ImagePin {
	return &v1alpha1.ImagePin{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImagePin"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            v1alpha1.Name(owner, image),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}},
		},
		Spec: v1alpha1.ImagePinSpec{
			Image: image, Digest: digest, Owner: owner,
			By: &v1alpha1.Claimer{Node: node, Pod: pod, PodUID: uid},
		},
	}
}

// create creates an ImagePin as a node.
func (s *server) create(ctx context.Context, node, ns string, p *v1alpha1.ImagePin, query string) error {
	return s.nodes[node].Do(ctx, "POST", pinPath(ns, "")+query, p, nil)
}

// mustClaim creates an ImagePin as a node and stores what the API server returns in p.
func (s *server) mustClaim(t *testing.T, node, ns string, p *v1alpha1.ImagePin) {
	t.Helper()
	if err := s.nodes[node].Do(testkit.Context(t), "POST", pinPath(ns, ""), p, p); err != nil {
		t.Fatal(err)
	}
}

func pinPath(ns, name string) string {
	return strings.TrimSuffix("/apis/imagepin.io/v1alpha1/namespaces/"+ns+"/imagepins/"+name, "/")
}
